// SPDX-License-Identifier: Apache-2.0
// One wording for all limits. The numbers travel beside the sentence, so that a program need not read prose.
#include "proto/refusal.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "proto/names.hpp"

namespace shmb::wire {
namespace {

const char* slot_word(std::uint16_t slot) {
  switch (slot) {
    case SHMBW_SLOT_BYTES:
      return "bytes";
    case SHMBW_SLOT_REGIONS:
      return "regions";
    case SHMBW_SLOT_LEASES:
      return "leases";
    case SHMBW_SLOT_SESSIONS:
      return "sessions";
    case SHMBW_SLOT_GROUPS:
      return "groups";
    case SHMBW_SLOT_TICKETS:
      return "tickets";
    case SHMBW_SLOT_NAMES:
      return "names";
    case SHMBW_SLOT_WATCHES:
      return "watches";
    case SHMBW_SLOT_DESCRIPTORS:
      return "descriptors";
    case SHMBW_SLOT_KEEP:
      return "keep time";
    case SHMBW_SLOT_MESSAGE:
      return "message bytes";
    case SHMBW_SLOT_MEMORY:
      return "memory";
    case SHMBW_SLOT_PARTICIPANTS:
      return "participants";
    case SHMBW_SLOT_QUEUES:
      return "queues";
    case SHMBW_SLOT_LANES:
      return "lanes";
    case SHMBW_SLOT_LANE_BYTES:
      return "lane memory";
    case SHMBW_SLOT_SEGMENTS:
      return "segments";
    case SHMBW_SLOT_SLOTS:
      return "slots";
    case SHMBW_SLOT_WORLDS:
      return "worlds";
    case SHMBW_SLOT_REFERENCES:
      return "references";
    case SHMBW_SLOT_GPU_BYTES:
      return "GPU bytes";
    case SHMBW_SLOT_GPU_DESCRIPTORS:
      return "GPU descriptors";
    case SHMBW_SLOT_TIMELINES:
      return "timelines";
    case SHMBW_SLOT_LIFETIME:
      return "lifetime";
    case SHMBW_SLOT_CREATES:
      return "regions a second";
    default:
      return "capacity";
  }
}

std::string amount(std::uint16_t slot, std::uint64_t value) {
  switch (slot) {
    case SHMBW_SLOT_BYTES:
    case SHMBW_SLOT_MESSAGE:
    case SHMBW_SLOT_MEMORY:
    case SHMBW_SLOT_LANE_BYTES:
    case SHMBW_SLOT_GPU_BYTES:
      return format_size(value);
    case SHMBW_SLOT_KEEP:
    case SHMBW_SLOT_LIFETIME:
      return format_duration(static_cast<std::int64_t>(value));
    default:
      return std::to_string(value);
  }
}

std::string scope_words(const Shortage& shortage) {
  const std::string id = std::to_string(shortage.scope_id);
  switch (shortage.scope) {
    case SHMBW_SCOPE_HOST:
      return "the host";
    case SHMBW_SCOPE_UID:
      return "uid " + id;
    case SHMBW_SCOPE_GROUP:
      return "group @" + id;
    case SHMBW_SCOPE_SESSION:
      return "session " + id;
    case SHMBW_SCOPE_PROCESS:
      return "this process";
    case SHMBW_SCOPE_CGROUP:
      return "the cgroup";
    case SHMBW_SCOPE_POOL:
      return "pool @" + id;
    case SHMBW_SCOPE_WATCHED:
      return "what is watched";
    default:
      return "this request";
  }
}

// "52.1 of 54.0 GiB": the unit once where both have the same.
std::string used_of(std::uint16_t slot, std::uint64_t used, std::uint64_t limit) {
  std::string have = amount(slot, used), whole = amount(slot, limit);
  const auto unit = have.rfind(' '), whole_unit = whole.rfind(' ');
  if (unit != have.npos && whole_unit != whole.npos && have.substr(unit) == whole.substr(whole_unit)) have.resize(unit);
  return have + " of " + whole;
}

Status status_of(std::uint16_t slot) {
  switch (slot) {
    case SHMBW_SLOT_MEMORY:
      return Status::no_memory;
    case SHMBW_SLOT_DESCRIPTORS:
      return Status::no_descriptors;
    default:
      return Status::limit;
  }
}

// At most `room` bytes, never half a character: a UTF-8 continuation byte (10xxxxxx) does not begin one.
std::string_view cut(std::string_view sentence, std::size_t room) {
  if (sentence.size() <= room) return sentence;
  while (room > 0 && (static_cast<unsigned char>(sentence[room]) & 0xc0) == 0x80) --room;
  return sentence.substr(0, room);
}

const char* status_sentence(std::int32_t status) {
  switch (status) {
#define X(name, value, text) \
  case value:                \
    return text;
    SHMB_STATUS_TABLE(X)
#undef X
    default:
      return "the broker refused with a status that this program does not know";
  }
}

// A refusal as a peer of any version sent it: what is missing is zero, what is unknown is passed over. Being strict
// here would turn a reason into a riddle.
shmbw_refusal lenient(Bytes from) {
  shmbw_refusal refusal{};
  if (!from.empty()) std::memcpy(&refusal, from.data(), std::min(from.size(), sizeof refusal));
  return refusal;
}

std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

}  // namespace

Error limit_refusal(const Shortage& shortage, std::string_view whose, std::string_view remedy,
                    std::string_view holders) {
  Error refusal{status_of(shortage.slot), 0, shortage, {}};
  std::string& sentence = refusal.sentence;
  sentence = std::string("limit: ") + slot_word(shortage.slot) + " of ";
  sentence += whose.empty() ? scope_words(shortage) : std::string(whose);
  sentence += ": asked " + amount(shortage.slot, shortage.asked) + ", used " +
              used_of(shortage.slot, shortage.used, shortage.limit);
  if (!holders.empty()) sentence += "; held by " + std::string(holders);
  if (!remedy.empty()) sentence += "; " + std::string(remedy);
  return refusal;
}

Error not_found(const Sought& sought) {
  const auto in_group = [&](std::string_view group) {
    return shmb::quoted((sought.owner_uid ? std::to_string(*sought.owner_uid) + ":" : "") + std::string(group));
  };
  std::string sentence = "no " + std::string(sought.what) + " ";
  std::string where;
  if (sought.what == "group") {
    sentence += sought.name.empty() ? names::id_text(sought.id) : in_group(sought.name);
    where = sought.owner_uid ? " --groups --all-groups" : " --groups";  // another user's, which root may see
  } else if (sought.name.empty()) {
    sentence += std::to_string(sought.id);
    if (sought.generation != 0) sentence += " of generation " + std::to_string(sought.generation);
  } else {
    sentence += shmb::quoted(sought.name);
    sentence += sought.group.empty() ? " in the session's own group, which is not there yet"
                                     : " in group " + in_group(sought.group);
    // The list of this group would not show what is in another one.
    if (!sought.group.empty() && sought.elsewhere.empty()) where = " --group " + in_group(sought.group);
  }
  if (!sought.other_kind.empty())
    sentence +=
        ", but a " + std::string(sought.other_kind) + " of that name: open it as a " + std::string(sought.other_kind);
  else sentence += ", or not for this caller";
  if (!sought.elsewhere.empty())
    sentence += "; there is one in another group of this user, " + shmb::quoted(sought.elsewhere) +
                ": programs that are started apart are in different groups, so name the group, or start them with "
                "one `shmbroker run`";
  sentence += "; `shmbroker list" + where + "` shows what there is";
  return Error{Status::not_found, 0, {}, std::move(sentence)};
}

shmbw_refusal to_wire(const Error& error) {
  shmbw_refusal refusal{};
  refusal.slot = error.shortage.slot;
  refusal.scope = error.shortage.scope;
  refusal.system_errno = static_cast<std::uint32_t>(error.system_errno);
  refusal.scope_id = error.shortage.scope_id;
  refusal.limit = error.shortage.limit;
  refusal.used = error.shortage.used;
  refusal.asked = error.shortage.asked;
  return refusal;
}

Error from_wire(Status status, const shmbw_refusal& refusal, std::string_view sentence) {
  Error error;
  error.status = status;
  error.system_errno = static_cast<int>(refusal.system_errno);
  error.shortage = {refusal.slot, refusal.scope, refusal.scope_id, refusal.limit, refusal.used, refusal.asked};
  error.sentence = sentence.empty() ? std::string_view(status_sentence(static_cast<std::int32_t>(status))) : sentence;
  // The sentence ends up on terminals, and the peer need not be our broker.
  for (char& c : error.sentence)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return error;
}

Bytes write_error_reply(std::span<std::byte> buffer, std::uint16_t op, std::uint64_t tag, const Error& error) {
  Writer writer(buffer);
  writer.begin(static_cast<std::uint16_t>(op | SHMBW_REPLY), tag, error.status, to_wire(error));
  writer.text(cut(error.sentence, kMaxSentence));
  return writer.finish(0);
}

Error read_error_reply(const PacketView& reply) {
  return from_wire(static_cast<Status>(reply.header.status), lenient(reply.fixed), as_text(reply.rest));
}

std::string element_detail(const Error& error, std::size_t room) {
  const shmbw_refusal refusal = to_wire(error);
  if (room < sizeof refusal) return {};
  std::string detail(reinterpret_cast<const char*>(&refusal), sizeof refusal);
  return detail.append(cut(error.sentence, std::min(kMaxSentence, room - sizeof refusal)));
}

Error read_element_detail(std::int32_t status, std::string_view detail) {
  const auto head = std::min(detail.size(), sizeof(shmbw_refusal));
  const Bytes bytes(reinterpret_cast<const std::byte*>(detail.data()), head);
  return from_wire(static_cast<Status>(status), lenient(bytes), detail.substr(head));
}

}  // namespace shmb::wire
