// SPDX-License-Identifier: Apache-2.0
// Typed requests to the broker, by the number of their message.
//
//   call<op>        one request (of a batch: one element), and its answer
//   call_batch<op>  the elements of one packet, and their answers in the same order
//   post<op>        without an answer
//   ask<op>         one whose answer is looked for later
//
// The structs come from the table of the wire. Only this file checks the form of answers. `Door` is a
// Session, or the Channel itself where a session is being made. Threads, errors and deadlines are those of its
// functions call() and post().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/session/channel.hpp"
#include "proto/wire_traits.hpp"

namespace shmb::client {

// The struct of a request and of its reply; of a batch: those of one element.
template <std::uint16_t op>
struct MessageStructs;
template <std::uint16_t op>
struct ReplyStructs;
#define SHMB_STRUCT(op, name, batch) \
  template <>                        \
  struct MessageStructs<op> {        \
    using Request = shmbw_##name;    \
  };
SHMBW_REQUESTS(SHMB_STRUCT)
#undef SHMB_STRUCT
#define SHMB_STRUCT(op, name, batch)    \
  template <>                           \
  struct ReplyStructs<op> {             \
    using Reply = shmbw_##name##_reply; \
  };
SHMBW_REPLIES(SHMB_STRUCT)
#undef SHMB_STRUCT
template <std::uint16_t op>
using RequestOf = typename MessageStructs<op>::Request;
template <std::uint16_t op>
using ReplyOf = typename ReplyStructs<op>::Reply;

template <std::uint16_t op>
std::unexpected<Error> malformed_answer() {
  return error(Status::protocol, "the broker's answer to " + std::string(wire::traits_of(op).name) + " is malformed");
}

// The bytes of one request. A short one needs no memory beside the stack: a release must not fail for want of it.
template <std::uint16_t op>
class RequestPacket {
 public:
  // A plain request is one element. `texts`: all of them, in the order of the elements. `descriptors`: how many travel
  // with it.
  template <class Texts>
  RequestPacket(std::span<const RequestOf<op>> elements, const Texts& texts, std::size_t descriptors,
                std::uint16_t flags = 0) {
    std::size_t size = sizeof(shmbw_header) + sizeof(shmbw_batch) + elements.size_bytes();
    for (const std::string_view text : texts) size += text.size();
    std::span<std::byte> room = small_;
    if (size > small_.size()) {
      large_.resize(size);
      room = large_;
    }
    wire::Writer writer(room);
    if constexpr (wire::traits_of(op).batch) {
      writer.begin_batch<RequestOf<op>>(op, 0, elements.size(), flags);
      for (std::size_t i = 0; i < elements.size(); ++i) writer.element(i, elements[i]);
    } else {
      writer.begin(op, 0, Status::ok, elements.front(), flags);
    }
    for (const std::string_view text : texts) writer.text(text);
    bytes_ = room.first(writer.finish(descriptors).size());
  }
  RequestPacket(const RequestPacket&) = delete;
  RequestPacket& operator=(const RequestPacket&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }  // empty: it does not fit into one message

 private:
  std::array<std::byte, 1024> small_;
  std::vector<std::byte> large_;
  std::span<std::byte> bytes_;
};

using Texts = std::initializer_list<std::string_view>;

// The parts of a request beside its fields.
struct With {
  std::span<const int> fds = {};  // they travel as copies
  Channel::Subscription* subscription = nullptr;
};

template <std::uint16_t op>
struct Answered {
  ReplyOf<op> fixed;
  Reply reply;  // its texts and descriptors
  wire::TextReader texts() const { return wire::TextReader(reply.view.rest); }
};

// The answers to the elements of a batch, read one after the other.
template <std::uint16_t op>
class Answers {
 public:
  static Result<Answers> of(Reply reply, std::size_t count) {
    const auto batch = wire::BatchView::open(reply.view);
    if (!batch || batch->count() != count) return malformed_answer<op>();
    return Answers(std::move(reply), *batch);
  }
  // The grant of the next element, or the reason why it got none. To be called once for each element.
  Result<ReplyOf<op>> next() {
    auto element = batch_.element<ReplyOf<op>>(next_++);
    if (!element) return malformed_answer<op>();
    const auto detail = texts_.take(element->outcome.detail_len);
    if (element->outcome.status == 0) return *element;
    if (!detail) return malformed_answer<op>();
    return std::unexpected(wire::read_element_detail(element->outcome.status, *detail));
  }

  Reply reply;

 private:
  Answers(Reply whole, const wire::BatchView& batch) : reply(std::move(whole)), batch_(batch), texts_(batch.texts()) {}

  wire::BatchView batch_;  // looks into `reply`, whose bytes do not move with it
  wire::TextReader texts_;
  std::size_t next_ = 0;
};

// For what gives something back, in destructors too: what is not told to the broker stays until the session's end. One
// allocation that fails is tried again. Without memory at all the session's end tells it.
template <class Give>
Result<void> insist(Give give) noexcept {
  for (int tries = 0; tries < 2; ++tries) {
    try {
      return give();
    } catch (const std::bad_alloc&) {
    }
  }
  return std::unexpected(Error{Status::no_memory, 0, {}, "out of memory"});  // short enough to need none
}

// Several elements in one packet: at most SHMBW_MAX_BATCH. An error is that of the whole packet.
template <std::uint16_t op, class Door, class AllTexts = Texts>
Result<Answers<op>> call_batch(Door& door, std::span<const RequestOf<op>> elements, const AllTexts& texts,
                               Deadline deadline, const With& with = {}) {
  static_assert(wire::traits_of(op).batch);
  const RequestPacket<op> packet(elements, texts, with.fds.size());
  SHMB_TRY(reply, door.call(packet.bytes(), deadline, with.subscription, with.fds));
  return Answers<op>::of(std::move(reply), elements.size());
}

template <std::uint16_t op, class Door>
Result<Answered<op>> call(Door& door, const RequestOf<op>& request, Texts texts, Deadline deadline,
                          const With& with = {}) {
  if constexpr (wire::traits_of(op).batch) {
    SHMB_TRY(answers, call_batch<op>(door, std::span(&request, 1), texts, deadline, with));
    SHMB_TRY(only, answers.next());
    return Answered<op>{only, std::move(answers.reply)};
  } else {
    const RequestPacket<op> packet(std::span(&request, 1), texts, with.fds.size());
    SHMB_TRY(reply, door.call(packet.bytes(), deadline, with.subscription, with.fds));
    SHMB_TRY(fixed, fixed_of<ReplyOf<op>>(reply));
    return Answered<op>{fixed, std::move(reply)};
  }
}

// Requests that are not answered, in as many packets as they need, in their order.
template <std::uint16_t op, class Door>
Result<void> post(Door& door, std::span<const RequestOf<op>> elements, Deadline deadline) {
  static_assert(wire::traits_of(op).no_reply != wire::NoReply::refused);
  constexpr std::size_t kMost = wire::traits_of(op).batch ? SHMBW_MAX_BATCH : 1;
  for (; !elements.empty(); elements = elements.subspan(std::min(kMost, elements.size()))) {
    const RequestPacket<op> packet(elements.first(std::min(kMost, elements.size())), Texts{}, 0, SHMBW_HEADER_NO_REPLY);
    SHMB_TRY_VOID(door.post(packet.bytes(), deadline));
  }
  return {};
}
template <std::uint16_t op, class Door>
Result<void> post(Door& door, const RequestOf<op>& request, Deadline deadline) {
  return post<op>(door, std::span(&request, 1), deadline);
}

// A plain request whose answer is looked for later (Channel::ask).
template <std::uint16_t op, class Door>
Result<std::shared_ptr<Channel::Later>> ask(Door& door, const RequestOf<op>& request) {
  return door.ask(RequestPacket<op>(std::span(&request, 1), Texts{}, 0).bytes());
}

}  // namespace shmb::client
