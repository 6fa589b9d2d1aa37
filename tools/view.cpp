// SPDX-License-Identifier: Apache-2.0
// See view.hpp.
#include "tools/view.hpp"

#include <unistd.h>

#include <array>
#include <span>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "proto/codec.hpp"

namespace shmb::tools {
namespace {

Error broken_reply() {
  return {Status::protocol, 0, {}, "the broker's answer does not follow the protocol (is it of another version?)"};
}

// Sends what `writer` holds in `buffer`.
Result<client::Reply> exchange(const Viewer& viewer, std::span<std::byte> buffer, wire::Writer& writer) {
  const wire::Bytes packet = writer.finish(0);
  return viewer.session().call(buffer.first(packet.size()), viewer.deadline());
}

template <std::size_t N>
std::string_view pick(const std::array<const char*, N>& texts, std::uint32_t value) {
  return value < N ? texts[value] : "unknown";
}

bool read_texts(wire::RecordReader& reader, RegionRow& row) {
  auto group = reader.text(row.record.group_len);
  auto name = reader.text(row.record.name_len);
  if (!group || !name) return false;
  row.group = *group;
  row.name = *name;
  return true;
}
bool read_texts(wire::RecordReader& reader, GroupRow& row) {
  auto name = reader.text(row.record.name_len);
  if (name) row.name = *name;
  return name.has_value();
}
bool read_texts(wire::RecordReader& reader, SessionRow& row) {
  auto library = reader.text(row.record.library_len);
  if (library) row.library = *library;
  return library.has_value();
}
bool read_texts(wire::RecordReader&, LeaseRow&) { return true; }
bool read_texts(wire::RecordReader&, TicketRow&) { return true; }

template <class Row>
Result<Rows<Row>> list(const Viewer& viewer, shmbw_table table, const Selection& selection) {
  Rows<Row> out;
  shmbw_list request{};
  request.table = table;
  if (selection.owner_uid) request.flags |= SHMBW_LIST_OWNER_GIVEN;
  if (selection.all_groups) request.flags |= SHMBW_LIST_ALL_GROUPS;
  request.region = selection.region;
  request.owner_uid = selection.owner_uid.value_or(0);
  request.group_len = static_cast<std::uint16_t>(selection.group_name.size());
  request.name_len = static_cast<std::uint16_t>(selection.name.size());
  do {
    std::array<std::byte, 1024> buffer;
    wire::Writer writer(buffer);
    writer.begin(SHMBW_OP_LIST, 0, Status::ok, request);
    writer.text(selection.group_name);
    writer.text(selection.name);
    auto reply = exchange(viewer, buffer, writer);
    if (!reply) return std::unexpected(reply.error());
    auto head = wire::read_struct<shmbw_list_reply>(reply->view.fixed);
    if (!head || (head->next != 0 && head->count == 0)) return std::unexpected(broken_reply());
    wire::RecordReader reader(reply->view.rest, head->element_size);
    for (std::uint16_t i = 0; i < head->count; ++i) {
      Row row;
      auto record = reader.next<decltype(row.record)>();
      if (!record) return std::unexpected(broken_reply());
      row.record = *record;
      if (!read_texts(reader, row)) return std::unexpected(broken_reply());
      out.rows.push_back(std::move(row));
    }
    out.total_bytes = head->total_bytes;
    request.cursor = head->next;
  } while (request.cursor != 0);
  return out;
}

}  // namespace

Result<Rows<RegionRow>> regions(const Viewer& viewer, const Selection& selection) {
  return list<RegionRow>(viewer, SHMBW_TABLE_REGIONS, selection);
}
Result<Rows<GroupRow>> groups(const Viewer& viewer, const Selection& selection) {
  return list<GroupRow>(viewer, SHMBW_TABLE_GROUPS, selection);
}
Result<Rows<SessionRow>> sessions(const Viewer& viewer, const Selection& selection) {
  return list<SessionRow>(viewer, SHMBW_TABLE_SESSIONS, selection);
}
Result<Rows<LeaseRow>> leases(const Viewer& viewer, const Selection& selection) {
  return list<LeaseRow>(viewer, SHMBW_TABLE_LEASES, selection);
}
Result<Rows<TicketRow>> tickets(const Viewer& viewer, const Selection& selection) {
  return list<TicketRow>(viewer, SHMBW_TABLE_TICKETS, selection);
}

Result<BrokerStatus> broker_status(const Viewer& viewer) {
  std::array<std::byte, 64> buffer;
  wire::Writer writer(buffer);
  writer.begin(SHMBW_OP_STATUS, 0, Status::ok, shmbw_status{});
  auto reply = exchange(viewer, buffer, writer);
  if (!reply) return std::unexpected(reply.error());
  BrokerStatus out;
  auto facts = wire::read_struct<shmbw_status_reply>(reply->view.fixed);
  if (!facts) return std::unexpected(broken_reply());
  out.facts = *facts;
  wire::TextReader texts(reply->view.rest);
  auto version = texts.take(facts->version_len), kernel = texts.take(facts->kernel_len);
  auto engine = texts.take(facts->engine_len), losses = texts.take(facts->losses_len);
  if (!version || !kernel || !engine || !losses) return std::unexpected(broken_reply());
  out.version = *version;
  out.kernel = *kernel;
  out.engine = *engine;
  while (!losses->empty()) {
    const std::size_t end = losses->find('\n');
    if (end != 0) out.losses.emplace_back(losses->substr(0, end));
    losses->remove_prefix(end == losses->npos ? losses->size() : end + 1);
  }
  return out;
}

std::string id_text(const shmbw_region_ref& ref) {
  return "@" + std::to_string(ref.id) + "." + std::to_string(ref.generation);
}

std::string group_text(std::uint64_t id, const std::string& name) {
  return name.empty() ? "#" + std::to_string(id) : name;
}

std::string address_text(const RegionRow& row) {
  if (row.name.empty()) return id_text(row.record.region);
  const std::string owner = row.record.owner_uid == ::geteuid() ? "" : std::to_string(row.record.owner_uid) + ":";
  return owner + group_text(row.record.group, row.group) + "/" + row.name;
}

std::string access_text(const shmbw_region_record& record) {
  if (record.flags & SHMBW_REGION_MANY_WRITERS) return "ro*";
  return record.state == SHMBW_REGION_STATE_PUBLISHED || record.state == SHMBW_REGION_STATE_WRITE_CLOSED ? "ro" : "rw";
}

std::string rights_text(std::uint32_t rights) {
  constexpr std::array<const char*, 4> names{"read", "write", "share", "release"};
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (rights >> i & 1) out += (out.empty() ? "" : " ") + std::string(names[i]);
  return out;
}

std::string state_text(const shmbw_region_record& record) {
  constexpr std::array<const char*, 7> names{"none",      "created", "ready", "write-closed",
                                             "published", "freeing", "cached"};
  std::string text(pick(names, record.state));
  if (record.freed_at != 0) {
    constexpr std::int64_t second = 1'000'000'000;
    std::int64_t left = record.freed_at - sys::now_boottime();
    left = left > second ? left - left % second : second;
    text += ", freed in " + format_duration(left);
  }
  return text;
}

std::string page_text(std::uint32_t page_kind) {
  constexpr std::array<const char*, 5> names{"unknown", "4K", "2M", "mixed", "unpopulated"};
  return std::string(pick(names, page_kind));
}

std::string session_state_text(std::uint32_t state) {
  constexpr std::array<const char*, 5> names{"none", "member", "heir", "supervisor", "disconnected"};
  return std::string(pick(names, state));
}

std::string keep_text(std::int64_t keep) { return keep == 0 ? "0" : format_duration(keep); }

}  // namespace shmb::tools
