// SPDX-License-Identifier: Apache-2.0
// See resolve.hpp.
#include "tools/resolve.hpp"

#include <charconv>

#include "base/result.hpp"
#include "base/text.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"

namespace shmb::tools {
namespace {

template <class T>
bool take_number(std::string_view& text, T& out) {
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

Result<Target> by_id(const std::string& text) {
  Target target;
  target.text = text;
  shmb_region_id id{};
  std::string_view rest = std::string_view(text).substr(1);
  const bool number = take_number(rest, id.id);
  if (number && rest.starts_with('.')) {
    rest.remove_prefix(1);
    if (!take_number(rest, id.generation)) rest = ".";
  }
  if (!number || !rest.empty() || id.id == 0)
    return error(Status::invalid,
                 shmb::quoted(text) + " is no region id: @ID or @ID.GENERATION, as `shmbroker list -q` prints them");
  target.id = id;
  return target;
}

Selection selection_of(const Viewer& viewer, const Target& target) {
  Selection selection;
  if (target.id) {
    selection.region = {target.id->id, target.id->generation, 0};
    return selection;
  }
  const auto address = names::parse_region(target.address);  // resolve has checked it
  selection.owner_uid = address->owner_uid;
  selection.name = address->name;
  if (auto id = names::group_id(address->group)) {
    selection.group = *id;
  } else {
    selection.group_name = address->group;
  }
  if (selection.group_name.empty() && selection.group == 0) selection.group = viewer.facts().group;
  return selection;
}

// The address of an object of this user with that name. Empty: there is none.
template <class Row>
std::string own_address(const Viewer& viewer, const Result<Listing<Row>>& listed) {
  if (listed)
    for (const Row& row : listed->rows)
      if (row.record.owner_uid == viewer.facts().uid) return address_text(row);
  return {};
}

// Searches the kinds that `what` names.
std::string same_name_elsewhere(const Viewer& viewer, std::string_view what, const std::string& name) {
  Selection everywhere;
  everywhere.name = name;
  std::string found;
  if (what.contains("region"))
    found = own_address(viewer, client::list_regions(viewer.session(), everywhere, viewer.deadline()));
  if (found.empty() && what.contains("pool"))
    found = own_address(viewer, client::list_pools(viewer.session(), everywhere, viewer.deadline()));
  return found;
}

}  // namespace

Error nothing_there(const char* what, const Target& target, const Viewer& viewer) {
  wire::Sought sought{.what = what};
  names::Address address;
  std::string elsewhere;
  if (target.id) {
    sought.id = target.id->id;
    sought.generation = target.id->generation;
  } else {
    address = *names::parse_region(target.address);  // resolve has checked it
    if (address.group.empty() && viewer.facts().group != 0) address.group = names::id_text(viewer.facts().group);
    elsewhere = same_name_elsewhere(viewer, what, address.name);
    sought.name = address.name;
    sought.group = address.group;
    sought.owner_uid = address.owner_uid;
    sought.elsewhere = elsewhere;
  }
  return client::asked_of(viewer.facts().socket, wire::not_found(sought));
}

Result<Target> resolve(const std::string& text) {
  if (text.starts_with('@') && !text.contains('/')) return by_id(text);  // else @GROUP/NAME
  SHMB_TRY(address, names::parse_region(text));
  Target target;
  target.text = text;
  target.address = address.group.empty() && !in_a_group() ? default_group() + "/" + text : text;
  return target;
}

Result<Region> attach(const Session& session, const Target& target, const shmb_attach_options& options) {
  shmb_error error{};
  shmb_region* region = nullptr;
  const int status = target.id ? shmb_attach_id(session.get(), &*target.id, &options, &region, &error)
                               : shmb_attach(session.get(), target.address.c_str(), &options, &region, &error);
  if (status != SHMB_OK) return std::unexpected(failed(error));
  return Region(region);
}

Result<RegionRow> find(const Viewer& viewer, const Target& target) {
  SHMB_TRY(found, client::list_regions(viewer.session(), selection_of(viewer, target), viewer.deadline()));
  if (found.rows.empty()) return std::unexpected(nothing_there("region", target, viewer));
  return std::move(found.rows.front());
}

Result<PoolRow> find_pool(const Viewer& viewer, const Target& target) {
  SHMB_TRY(found, client::list_pools(viewer.session(), selection_of(viewer, target), viewer.deadline()));
  if (found.rows.empty()) return std::unexpected(nothing_there("pool", target, viewer));
  return std::move(found.rows.front());
}

Result<QueueRow> find_queue(const Viewer& viewer, const PoolRow& pool, const std::string& name) {
  Selection selection;
  selection.region.id = pool.record.pool;
  SHMB_TRY(found, client::list_queues(viewer.session(), selection, viewer.deadline()));
  for (QueueRow& row : found.rows)
    if (row.name == name) return std::move(row);
  return std::unexpected(
      client::asked_of(viewer.facts().socket, {Status::not_found,
                                               0,
                                               {},
                                               "no queue " + shmb::quoted(address_text(pool) + ":" + name) +
                                                   "; `shmbroker list --queues` shows what there is"}));
}

std::string take_queue(std::string& address) {
  const std::size_t slash = address.rfind('/');
  const std::size_t colon = address.find(':', slash == address.npos ? 0 : slash);
  if (colon == address.npos) return {};
  std::string queue = address.substr(colon + 1);
  address.resize(colon);
  return queue;
}

}  // namespace shmb::tools
