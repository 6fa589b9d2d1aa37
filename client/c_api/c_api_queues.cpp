// SPDX-License-Identifier: Apache-2.0
// The C ABI's queues, messages and queue sets.
#include <algorithm>

#include "client/c_api/c_api.hpp"
#include "client/queue/queue_set.hpp"

struct shmb_queue {
  std::unique_ptr<shmb::client::Queue> it;
};
struct shmb_message {
  shmb::client::Message it;
};
struct shmb_queue_set {
  shmb::client::QueueSet it;
  struct Member {
    shmb::client::Queue* inside;
    shmb_queue* outside;
  };
  std::vector<Member> members;
};

namespace shmb::client::c_api {
namespace {

Result<Queue*> queue_of(shmb_queue* queue) {
  if (queue == nullptr) return error(Status::invalid, "no queue was given");
  return queue->it.get();
}

Result<QueueSpec> to_spec(const shmb_queue_options* options) {
  SHMB_TRY(wanted, read_options(options));
  if (wanted.reserved != 0) return error(Status::too_new, "the reserved field of a queue's options is not 0");
  constexpr std::uint32_t flags = SHMB_QUEUE_DROP_OLDEST | SHMB_QUEUE_EXPIRING | SHMB_QUEUE_AT_LEAST_ONCE |
                                  SHMB_QUEUE_CREATE_ONLY | SHMB_QUEUE_OPEN_ONLY;
  if ((wanted.flags & ~flags) != 0) return error(Status::unknown_flags, "an unknown flag of a queue");
  if ((wanted.role & ~unsigned{SHMB_QUEUE_READER | SHMB_QUEUE_WRITER}) != 0)
    return error(Status::unknown_flags, "an unknown role in a queue");
  if (wanted.kind > SHMB_QUEUE_BROADCAST)
    return error(Status::invalid, "the kind of a queue is SHMB_QUEUE_SPSC, SHMB_QUEUE_MPMC or SHMB_QUEUE_BROADCAST");
  if (wanted.inline_bytes != 0 && wanted.inline_bytes != 56 && wanted.inline_bytes != 120)
    return error(Status::invalid, "a queue has 56 or 120 inline bytes, not " + std::to_string(wanted.inline_bytes));
  QueueSpec spec;
  spec.kind = static_cast<pool::QueueKind>(wanted.kind);
  spec.reader = (wanted.role & SHMB_QUEUE_READER) != 0;
  spec.writer = (wanted.role & SHMB_QUEUE_WRITER) != 0;
  if ((wanted.flags & SHMB_QUEUE_DROP_OLDEST) != 0) spec.flags |= pool::kQueueDropOldest;
  if ((wanted.flags & SHMB_QUEUE_EXPIRING) != 0) spec.flags |= pool::kQueueExpiring;
  if ((wanted.flags & SHMB_QUEUE_AT_LEAST_ONCE) != 0) spec.flags |= pool::kQueueAtLeastOnce;
  spec.create_only = (wanted.flags & SHMB_QUEUE_CREATE_ONLY) != 0;
  spec.open_only = (wanted.flags & SHMB_QUEUE_OPEN_ONLY) != 0;
  if (wanted.cells != 0) spec.cells = wanted.cells;
  if (wanted.inline_bytes != 0) spec.cell_size = wanted.inline_bytes + 8;
  if (wanted.spin_ns == SHMB_NO_WAIT) spec.spin = 0;
  else if (wanted.spin_ns < 0)
    return error(Status::invalid, "shmb_queue_options.spin_ns is not negative, or SHMB_NO_WAIT");
  else if (wanted.spin_ns != 0) spec.spin = wanted.spin_ns, spec.spin_always = true;
  spec.wait = wanted.wait_ns;
  spec.timeout = wanted.timeout_ns;
  return spec;
}

Result<void> to_parts(const shmb_part* parts, std::span<OutPart> out) {
  if (parts == nullptr && !out.empty()) return error(Status::invalid, "no parts were given");
  for (std::size_t i = 0; i < out.size(); ++i) {
    const shmb_part& part = parts[i];
    if (part.kind < SHMB_PART_BYTES || part.kind > SHMB_PART_REGION)
      return error(Status::invalid, "a part is bytes, a slot or a region");
    out[i].kind = static_cast<PartKind>(part.kind);
    out[i].rights = part.rights;
    out[i].data = static_cast<const std::byte*>(part.data);
    out[i].length = part.length;
    out[i].offset = part.offset;
    out[i].slot = to_slot(part.slot);
    if (part.region != nullptr) out[i].region = part.region->it.get();
  }
  return {};
}

// The parts of one message at a time.
class Parts {
 public:
  Result<std::span<const OutPart>> of(const shmb_outgoing& message) {
    SHMB_TRY_VOID(check_parts(message.count));  // before there is room for as many as the caller says
    if (message.count > few_.size()) many_.resize(message.count);
    const auto parts = message.count > few_.size() ? std::span(many_) : std::span(few_).first(message.count);
    std::ranges::fill(parts, OutPart{});
    SHMB_TRY_VOID(to_parts(message.parts, parts));
    return parts;
  }

 private:
  std::array<OutPart, 4> few_;  // no allocation for a message of a part or two
  std::vector<OutPart> many_;
};

Result<void> known_message(const shmb_message* message) {
  if (message == nullptr) return error(Status::invalid, "no message was given");
  return {};
}

shmb_part part_to_c(const Message::Part& part, const Message& message, Pool* pool) {
  shmb_part out{};
  out.kind = static_cast<std::uint32_t>(part.kind);
  out.rights = part.rights;
  out.data = part.data;
  out.length = part.length;
  out.offset = part.offset;
  out.status = static_cast<std::int32_t>(part.status);
  out.same_as = part.same_as;
  if (part.kind == PartKind::region) out.id = to_id(part.region, message.epoch());
  if (part.kind == PartKind::slot) {
    out.slot.index = part.slot;
    out.slot.generation = part.generation;
    if (part.data != nullptr) out.slot.data = const_cast<std::byte*>(part.data) - part.offset;
    out.slot.length = part.offset + part.length;
    if (pool != nullptr) out.slot.pool = pool->id();
  }
  return out;
}

}  // namespace
}  // namespace shmb::client::c_api

using namespace shmb;
using namespace shmb::client;
using namespace shmb::client::c_api;

extern "C" {

int shmb_queue_open(shmb_pool* pool, const char* name, const shmb_queue_options* options, shmb_queue** queue,
                    shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, pool_of(pool));
    SHMB_TRY(spec, to_spec(options));
    if (queue == nullptr) return shmb::error(Status::invalid, "no place for the queue was given");
    spec.name = text_or_empty(name);
    auto handle = std::make_unique<shmb_queue>();  // before: a queue that was made must not be lost
    SHMB_TRY(opened, Queue::open(known, spec));
    handle->it = std::move(opened);
    *queue = handle.release();
    return {};
  });
}

int shmb_queue_open_alone(shmb_session* session, const char* address, const shmb_queue_options* options,
                          shmb_queue** queue, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, session_of(session));
    SHMB_TRY(spec, to_spec(options));
    if (queue == nullptr) return shmb::error(Status::invalid, "no place for the queue was given");
    auto handle = std::make_unique<shmb_queue>();  // as above
    SHMB_TRY(opened, Queue::open_alone(known, text_or_empty(address), spec));
    handle->it = std::move(opened);
    *queue = handle.release();
    return {};
  });
}

int shmb_queue_close(shmb_queue* queue, uint32_t flags, shmb_error* error) noexcept {
  if (queue == nullptr) return SHMB_OK;
  const int status = guarded(error, [&]() -> Result<void> {
    auto closed = queue->it->close((flags & SHMB_QUEUE_CLOSE_ALL) != 0, (flags & SHMB_QUEUE_CLOSE_REMOVE) != 0);
    if (closed && (flags & ~unsigned{SHMB_QUEUE_CLOSE_ALL | SHMB_QUEUE_CLOSE_REMOVE}) != 0)
      return shmb::error(Status::unknown_flags, "an unknown flag of close; the handle is closed");
    return closed;
  });
  (void)guarded(nullptr, [&]() -> Result<void> {
    delete queue;
    return {};
  });
  return status;
}

int shmb_queue_shutdown(shmb_queue* queue, uint32_t flags, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, queue_of(queue));
    if ((flags & ~unsigned{SHMB_QUEUE_CLOSE_ALL | SHMB_QUEUE_CLOSE_REMOVE}) != 0)
      return shmb::error(Status::unknown_flags, "an unknown flag of shutdown");
    return known->shutdown((flags & SHMB_QUEUE_CLOSE_REMOVE) != 0);
  });
}

int shmb_queue_drain(shmb_queue* queue, int64_t wait_ns, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, queue_of(queue));
    return known->drain(wait_ns);
  });
}

int shmb_queue_get_info(shmb_queue* queue, shmb_queue_info* info, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, queue_of(queue));
    SHMB_TRY(facts, known->facts());
    shmb_queue_info out{};
    out.kind = static_cast<std::uint32_t>(facts.kind);
    out.role = (facts.reader ? unsigned{SHMB_QUEUE_READER} : 0U) | (facts.writer ? unsigned{SHMB_QUEUE_WRITER} : 0U);
    if ((facts.flags & pool::kQueueDropOldest) != 0) out.flags |= SHMB_QUEUE_DROP_OLDEST;
    if ((facts.flags & pool::kQueueExpiring) != 0) out.flags |= SHMB_QUEUE_EXPIRING;
    if ((facts.flags & pool::kQueueAtLeastOnce) != 0) out.flags |= SHMB_QUEUE_AT_LEAST_ONCE;
    out.cells = facts.cells;
    out.inline_bytes = facts.inline_bytes;
    out.readers = facts.readers;
    out.writers = facts.writers;
    out.closed = facts.closed ? 1 : 0;
    out.lanes = facts.lanes;
    out.deaths = facts.deaths;
    out.depth = facts.depth;
    out.lost = facts.lost;
    out.sent = facts.sent;
    out.received = facts.received;
    out.expired = facts.expired;
    out.pool = facts.pool;
    copy_text(out.name, facts.name);
    out.in_regions = facts.in_regions;
    return write_struct(out, info);
  });
}

int shmb_queue_send(shmb_queue* queue, const void* data, uint64_t length, int64_t wait_ns, shmb_error* error) noexcept {
  const auto* const bytes = static_cast<const std::byte*>(data);
  auto short_way = [&] {
    if (queue == nullptr || (data == nullptr && length != 0)) return Now::ask;
    return queue->it->send_now({bytes, length});
  };
  auto why = [&](Now now) { return queue->it->why(now); };
  return guarded_short(error, wait_ns != SHMB_NO_WAIT, short_way, why, [&]() -> Result<void> {
    if (queue == nullptr) return shmb::error(Status::invalid, "no queue was given");
    if (data == nullptr && length != 0) return shmb::error(Status::invalid, "a length and no data were given");
    return queue->it->send({bytes, static_cast<std::size_t>(length)}, wait_ns);
  });
}

int shmb_queue_send_slot(shmb_queue* queue, const shmb_slot* slot, int64_t wait_ns, shmb_error* error) noexcept {
  auto short_way = [&] { return queue == nullptr || slot == nullptr ? Now::ask : queue->it->send_now(to_slot(*slot)); };
  auto why = [&](Now now) { return queue->it->why(now); };
  return guarded_short(error, wait_ns != SHMB_NO_WAIT, short_way, why, [&]() -> Result<void> {
    if (queue == nullptr || slot == nullptr) return shmb::error(Status::invalid, "no queue, or no slot, was given");
    return queue->it->send(to_slot(*slot), wait_ns);
  });
}

int shmb_queue_send_message(shmb_queue* queue, const shmb_outgoing* message, int64_t wait_ns,
                            shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (queue == nullptr || message == nullptr)
      return shmb::error(Status::invalid, "no queue, or no message, was given");
    Parts parts;
    SHMB_TRY(known, parts.of(*message));
    return queue->it->send(known, message->type, message->lifetime_ns, wait_ns);
  });
}

int shmb_queue_send_many(shmb_queue* queue, const shmb_outgoing* messages, size_t count, int64_t wait_ns, size_t* sent,
                         shmb_error* error) noexcept {
  std::size_t done = 0;
  const int status = guarded(error, [&]() -> Result<void> {
    if (queue == nullptr || (messages == nullptr && count != 0))
      return shmb::error(Status::invalid, "no queue, or no messages, were given");
    Parts parts;
    auto next = [&](std::size_t i) -> Result<Queue::Outgoing> {
      SHMB_TRY(known, parts.of(messages[i]));
      return Queue::Outgoing{known, messages[i].type, messages[i].lifetime_ns};
    };
    auto plain = [&](std::size_t i) -> std::optional<std::span<const std::byte>> {
      const shmb_outgoing& message = messages[i];
      if (message.count != 1 || message.type != 0 || message.lifetime_ns != 0 || message.parts == nullptr)
        return std::nullopt;
      const shmb_part& part = *message.parts;
      if (part.kind != SHMB_PART_BYTES || part.data == nullptr) return std::nullopt;
      return std::span(static_cast<const std::byte*>(part.data), part.length);
    };
    return queue->it->send_many(count, std::ref(next), wait_ns, done, std::ref(plain));
  });
  if (sent != nullptr) *sent = done;
  return status;
}

int shmb_message_new(shmb_message** message, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (message == nullptr) return shmb::error(Status::invalid, "no place for the message was given");
    *message = new shmb_message;
    return {};
  });
}

void shmb_message_free(shmb_message* message) noexcept {
  (void)guarded(nullptr, [&]() -> Result<void> {
    delete message;
    return {};
  });
}

int shmb_queue_receive(shmb_queue* queue, shmb_message* message, uint32_t flags, int64_t wait_ns,
                       shmb_error* error) noexcept {
  auto short_way = [&] {
    if (queue == nullptr || message == nullptr || (flags & ~unsigned{SHMB_RECEIVE_KEEP}) != 0) return Now::ask;
    return queue->it->receive_now(message->it, (flags & SHMB_RECEIVE_KEEP) != 0, wait_ns);
  };
  auto why = [&](Now now) { return queue->it->why(now); };
  return guarded_short(error, wait_ns != SHMB_NO_WAIT, short_way, why, [&]() -> Result<void> {
    if (queue == nullptr || message == nullptr)
      return shmb::error(Status::invalid, "no queue, or no message to receive into, was given");
    if ((flags & ~unsigned{SHMB_RECEIVE_KEEP}) != 0)
      return shmb::error(Status::unknown_flags, "an unknown flag of receive");
    return queue->it->receive(message->it, (flags & SHMB_RECEIVE_KEEP) != 0, wait_ns);
  });
}

int shmb_queue_receive_many(shmb_queue* queue, shmb_message* const* messages, size_t capacity, int64_t wait_ns,
                            size_t* count, shmb_error* error) noexcept {
  if (count != nullptr) *count = 0;
  return guarded(error, [&]() -> Result<void> {
    if (queue == nullptr || count == nullptr || (messages == nullptr && capacity != 0))
      return shmb::error(Status::invalid, "no queue, no messages, or no place for their number was given");
    std::array<Message*, 64> few;  // no allocation for a usual batch
    std::vector<Message*> many(capacity > few.size() ? capacity : 0);
    const auto inside = many.empty() ? std::span(few).first(capacity) : std::span(many);
    for (std::size_t i = 0; i < capacity; ++i) {
      if (messages[i] == nullptr) return shmb::error(Status::invalid, "one of the messages is NULL");
      inside[i] = &messages[i]->it;
    }
    SHMB_TRY(received, queue->it->receive_many(inside, wait_ns));
    *count = received;
    return {};
  });
}

int shmb_message_done(shmb_message* message, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY_VOID(known_message(message));
    return message->it.done();
  });
}

int shmb_message_give_back(shmb_message* message, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY_VOID(known_message(message));
    return message->it.give_back();
  });
}

int shmb_message_keep(shmb_message* message, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY_VOID(known_message(message));
    return message->it.keep();
  });
}

size_t shmb_message_count(const shmb_message* message) noexcept { return message == nullptr ? 0 : message->it.count(); }

uint64_t shmb_message_type(const shmb_message* message) noexcept { return message == nullptr ? 0 : message->it.type(); }

const void* shmb_message_data(const shmb_message* message) noexcept {
  return message == nullptr || message->it.count() == 0 ? nullptr : message->it.part(0).data;
}

uint64_t shmb_message_length(const shmb_message* message) noexcept {
  return shmb_message_data(message) == nullptr ? 0 : message->it.part(0).length;  // no bytes: see its status
}

int shmb_message_part(const shmb_message* message, size_t number, shmb_part* part, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY_VOID(known_message(message));
    if (part == nullptr) return shmb::error(Status::invalid, "no place for the part was given");
    if (number >= message->it.count())
      return shmb::error(Status::invalid, "the message has " + std::to_string(message->it.count()) + " parts, no " +
                                              std::to_string(number));
    *part = part_to_c(message->it.part(number), message->it, message->it.pool());
    return {};
  });
}

int shmb_message_take_slot(shmb_message* message, size_t number, shmb_slot* slot, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY_VOID(known_message(message));
    if (slot == nullptr) return shmb::error(Status::invalid, "no place for the slot was given");
    SHMB_TRY(taken, message->it.take_slot(number));
    *slot = c_api::to_c(taken);
    return {};
  });
}

int shmb_message_take_region(shmb_message* message, size_t number, shmb_region** region, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY_VOID(known_message(message));
    if (region == nullptr) return shmb::error(Status::invalid, "no place for the region was given");
    auto handle = std::make_unique<shmb_region>();
    SHMB_TRY(taken, message->it.take_region(number));
    handle->it = std::move(taken);
    *region = handle.release();
    return {};
  });
}

int shmb_queue_descriptor(shmb_queue* queue, int* fd, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    SHMB_TRY(known, queue_of(queue));
    if (fd == nullptr) return shmb::error(Status::invalid, "no place for the descriptor was given");
    SHMB_TRY(descriptor, known->descriptor());
    *fd = descriptor;
    return {};
  });
}

int shmb_queue_set_new(shmb_queue_set** set, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (set == nullptr) return shmb::error(Status::invalid, "no place for the set was given");
    *set = new shmb_queue_set;
    return {};
  });
}

void shmb_queue_set_free(shmb_queue_set* set) noexcept {
  (void)guarded(nullptr, [&]() -> Result<void> {
    delete set;
    return {};
  });
}

int shmb_queue_set_add(shmb_queue_set* set, shmb_queue* queue, void* tag, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (set == nullptr || queue == nullptr) return shmb::error(Status::invalid, "no set, or no queue, was given");
    set->members.reserve(set->members.size() + 1);
    SHMB_TRY_VOID(set->it.add(*queue->it, tag));
    set->members.push_back({queue->it.get(), queue});
    return {};
  });
}

int shmb_queue_set_remove(shmb_queue_set* set, shmb_queue* queue, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (set == nullptr || queue == nullptr) return shmb::error(Status::invalid, "no set, or no queue, was given");
    SHMB_TRY_VOID(set->it.remove(*queue->it));
    std::erase_if(set->members, [&](const auto& member) { return member.outside == queue; });
    return {};
  });
}

int shmb_queue_set_wait(shmb_queue_set* set, int64_t wait_ns, shmb_queue** queue, void** tag,
                        shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (set == nullptr || queue == nullptr)
      return shmb::error(Status::invalid, "no set, or no place for the queue, was given");
    SHMB_TRY(ready, set->it.wait(wait_ns));
    for (const auto& member : set->members)
      if (member.inside == ready.queue) *queue = member.outside;
    if (tag != nullptr) *tag = ready.tag;
    return {};
  });
}

int shmb_queue_set_descriptor(shmb_queue_set* set, int* fd, shmb_error* error) noexcept {
  return guarded(error, [&]() -> Result<void> {
    if (set == nullptr || fd == nullptr) return shmb::error(Status::invalid, "no set, or no place, was given");
    SHMB_TRY(descriptor, set->it.descriptor());
    *fd = descriptor;
    return {};
  });
}

}  // extern "C"
