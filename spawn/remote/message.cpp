// SPDX-License-Identifier: Apache-2.0
// See message.hpp.
#include "spawn/remote/message.hpp"

#include "spawn/face/shmbroker_cause.h"
#include "spawn/ranks/bytes.hpp"

namespace shmb::remote {
namespace {

using client::OutPart;
using client::PartKind;
using spawn::Packer;
using spawn::Unpacker;

constexpr std::uint32_t kMagic = 0x31'6d'72'73;  // "srm1"

// Small messages lie in the queue itself: what a kind does not use is not there.
bool names_reference(Kind kind) {
  return kind == Kind::create || kind == Kind::accepted || kind == Kind::fetch || kind == Kind::type;
}
bool of_shutdown(Kind kind) { return kind >= Kind::idle; }

void pack_id(Packer& out, const RefId& id) { out.number(id.counter).number(id.creator); }
RefId unpack_id(Unpacker& in) {
  RefId id;
  id.counter = in.number<std::uint64_t>();
  id.creator = in.number<std::uint32_t>();
  return id;
}

OutPart region_part(client::Region* region, std::uint64_t length) {
  OutPart part;
  part.kind = PartKind::region;
  part.region = region;
  part.length = length;
  // A writer's rights where it has them: a read-only grant would close writing, and the memory could not be used again.
  part.rights = SHMBW_RIGHT_MAP_READ | (region->rights() & (SHMBW_RIGHT_MAP_WRITE | SHMBW_RIGHT_SHARE));
  return part;
}
OutPart slot_part(const SlotBytes& bytes) {
  OutPart part;
  part.kind = PartKind::slot;
  part.slot = bytes.slot();
  part.length = bytes.view().size();
  return part;
}

}  // namespace

std::string pack_failure(const Failure& failure) {
  Packer out;
  out.number(static_cast<std::int32_t>(failure.status))
      .number(failure.rank)
      .text(failure.worker)
      .text(failure.type)
      .text(failure.text)
      .text(failure.trace)
      .number(static_cast<std::uint32_t>(failure.causes.size()));
  for (const Failure::Cause& cause : failure.causes) out.text(cause.type).text(cause.text);
  return out.take();
}

Failure unpack_failure(std::string_view bytes) {
  Unpacker in(bytes);
  Failure failure;
  failure.status = static_cast<Status>(in.number<std::int32_t>());
  failure.rank = in.number<std::int32_t>();
  failure.worker = in.text();
  failure.type = in.text();
  failure.text = in.text();
  failure.trace = in.text();
  const auto causes = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < causes && i < SHMB_MOST_CAUSES && in.whole(); ++i) {
    Failure::Cause& cause = failure.causes.emplace_back();
    cause.type = in.text();
    cause.text = in.text();
  }
  if (!in.whole() || failure.status == Status::ok) {
    failure.status = Status::protocol;
    failure.text = "a worker told of a failure in words that this library does not know";
  }
  return failure;
}

Failure failure_of(const Error& error) { return {error.status, -1, {}, {}, error.sentence, {}}; }

Error error_of(const Failure& failure) {
  std::string sentence;
  if (failure.status == Status::raised || failure.status == Status::no_function)
    sentence = "On worker \"" + failure.worker + "\" (rank " + std::to_string(failure.rank) +
               "): " + (failure.type.empty() ? "" : failure.type + ": ");
  return {failure.status, 0, {}, sentence + failure.text};
}

std::vector<OutPart> parts_of(const Outgoing& message, std::string& head) {
  const Head& from = message.head;
  Packer out;
  const bool beside = message.bytes != nullptr || message.slot != nullptr;
  out.number(kMagic).number(from.kind).number(
      static_cast<std::uint8_t>(from.flags | (beside ? kBytesBeside : std::uint8_t{0})));
  out.number(from.to_life).number(from.call).number(from.deadline);
  if (names_reference(from.kind)) pack_id(out, from.reference);
  if (of_shutdown(from.kind))
    out.number(from.phase).number(from.round).number(from.sent).number(from.received).number(from.census);
  out.text(message.function);
  out.number(static_cast<std::uint32_t>(message.references.size()));
  for (const WireReference& reference : message.references) {
    pack_id(out, reference.id);
    pack_id(out, reference.fork);
    out.number(reference.owner);
  }
  out.number(message.bytes_length);
  head = out.take();
  head += message.data;

  std::vector<OutPart> parts(1);
  parts[0].data = reinterpret_cast<const std::byte*>(head.data());
  parts[0].length = head.size();
  if (message.slot != nullptr) parts.push_back(slot_part(*message.slot));
  else if (message.bytes != nullptr) parts.push_back(region_part(message.bytes, message.bytes_length));
  for (client::Region* region : message.regions) parts.push_back(region_part(region, 0));
  return parts;
}

std::optional<Incoming> read_message(client::Message& message, const std::shared_ptr<SlotBudget>& budget) {
  if (message.count() == 0 || message.part(0).kind == PartKind::region || message.part(0).data == nullptr)
    return std::nullopt;
  const std::string_view bytes(reinterpret_cast<const char*>(message.part(0).data), message.part(0).length);
  Unpacker in(bytes);
  if (in.number<std::uint32_t>() != kMagic) return std::nullopt;
  Incoming out;
  out.writer = message.writer();
  out.head.kind = in.number<Kind>();
  out.head.flags = in.number<std::uint8_t>();
  out.head.to_life = in.number<std::uint32_t>();
  out.head.call = in.number<std::uint64_t>();
  out.head.deadline = in.number<std::int64_t>();
  if (names_reference(out.head.kind)) out.head.reference = unpack_id(in);
  if (of_shutdown(out.head.kind)) {
    out.head.phase = in.number<std::uint64_t>();
    out.head.round = in.number<std::uint64_t>();
    out.head.sent = in.number<std::uint64_t>();
    out.head.received = in.number<std::uint64_t>();
    out.head.census = in.number<std::uint64_t>();
  }
  out.function = in.text();
  const auto references = in.number<std::uint32_t>();
  if (!in.whole() || references > kMostBeside || out.head.kind < Kind::call || out.head.kind > Kind::over)
    return std::nullopt;
  for (std::uint32_t i = 0; i < references; ++i) {
    WireReference one;
    one.id = unpack_id(in);
    one.fork = unpack_id(in);
    one.owner = in.number<std::uint32_t>();
    out.references.push_back(one);
  }
  out.bytes_length = in.number<std::uint64_t>();
  if (!in.whole()) return std::nullopt;
  const std::string_view rest = in.rest();
  out.data.assign(rest.data(), rest.size());

  std::size_t next = 1;
  const bool beside = (out.head.flags & kBytesBeside) != 0;
  if (beside && message.count() < 2) return std::nullopt;
  if (beside && message.part(next).kind == PartKind::slot) {
    const client::Message::Part& part = message.part(next);
    if (out.bytes_length > part.length) return std::nullopt;
    const bool counts = out.bytes_length <= kInline;
    if (part.status == Status::ok && counts && !budget->take()) {
      out.data.assign(reinterpret_cast<const char*>(part.data), out.bytes_length);
    } else {
      auto slot = message.take_slot(next);  // it stays the message's where it could not be mapped
      if (slot)
        out.slot = {message.pool()->shared_from_this(), *slot, slot->data + part.offset, out.bytes_length,
                    counts ? budget : nullptr};
      else out.broken = slot.error();
      if (!slot && counts && part.status == Status::ok) budget->give_back();
    }
    ++next;
  }
  for (; next < message.count(); ++next) {
    const client::Message::Part& part = message.part(next);
    if (part.kind != PartKind::region) return std::nullopt;
    if (part.status != Status::ok) {
      out.broken = part.failure;
      continue;
    }
    auto region = message.take_region(next);
    if (!region) {
      out.broken = region.error();
      continue;
    }
    if (beside && next == 1) {
      if (out.bytes_length > (*region)->facts().length) return std::nullopt;
      out.bytes = std::move(*region);
    } else {
      out.regions.push_back(std::move(*region));
    }
  }
  return out;
}

}  // namespace shmb::remote
