// SPDX-License-Identifier: Apache-2.0
// The one reply to the request in service, built in the broker's one buffer. An error is a reply, never a disconnect.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "daemon/ledger/refuse.hpp"
#include "daemon/serve/ledger.hpp"
#include "proto/codec.hpp"
#include "proto/refusal.hpp"
#include "proto/wire_traits.hpp"

namespace shmb::daemon {

struct Request {
  Ledger& ledger;
  Session& session;
  const wire::PacketView& packet;

  bool silent() const { return (packet.header.flags & SHMBW_HEADER_NO_REPLY) != 0; }
  wire::Writer writer() const {
    return wire::Writer(std::span(ledger.reply.buffer.get(), std::size_t{SHMBW_MAX_MESSAGE}));
  }
  std::uint16_t reply_op() const { return static_cast<std::uint16_t>(packet.header.op | SHMBW_REPLY); }

  template <class T>
  void answer(const T& fixed, std::initializer_list<std::string_view> texts = {}) const {
    wire::Writer out = writer();
    out.begin(reply_op(), packet.header.tag, Status::ok, fixed);
    for (std::string_view text : texts) out.text(text);
    send(out);
  }
  // Before its answer leaves, or without one at its end: it is not served again. With the feature RESUME.
  void note_served(wire::Bytes answer = {}) const;
  void fail(const Error& error) const;
  void hold() const;  // counted once, when it is answered
  // The request was served in part. The broker serves it again in the session's next turn, from the place that the
  // session has noted.
  void yield() const;
  void fail(Status status, std::string_view sentence) const { fail(plain(status, std::string(sentence))); }
  // Finishes and sends; the descriptors are Reply::fds.
  void send(wire::Writer& out) const;

  // The fixed part of a plain request. nullopt: answered with an error.
  template <class T>
  std::optional<T> read() const {
    auto fixed = wire::read_struct<T>(packet.fixed);
    if (fixed) return *fixed;
    refuse_struct(fixed.error());
    return std::nullopt;
  }
  void refuse_struct(Status status) const;
};

// A batch between two turns: the reply as far as it is written, and its descriptors. The session's own leases hold the
// regions that it names. Descriptors that were opened for it count for the session's user meanwhile. Nothing else
// bounds them, because one region and one lease are enough for all elements of all batches.
struct BatchUnderWay {
  // Takes the descriptors of Reply::fds and reply_owned.
  BatchUnderWay(const Request& request, const wire::Writer& writer, std::size_t next_element);
  BatchUnderWay(const BatchUnderWay&) = delete;
  BatchUnderWay& operator=(const BatchUnderWay&) = delete;
  ~BatchUnderWay();
  // Whether this request began the batch. If it did not, the broker has a bug and logs it.
  bool belongs_to(const Request& request) const;
  // Puts the reply and its descriptors back into the ledger, so that the batch can continue.
  void resume();

  Ledger& ledger;
  std::uint32_t uid;
  std::uint16_t op;
  std::uint64_t tag;
  wire::Writer out;
  std::size_t next;
  std::vector<std::byte> written;
  std::vector<int> fds;
  std::vector<Fd> owned;
};

// See stored_answer.hpp. The first: the batch goes on in a later turn, or with the next broker. The second: the element
// with which the batch of an earlier broker goes on, if this request is it, else 0. `out` has begun the answer.
void store_begun(const Request& request, const BatchUnderWay& batch);
std::size_t go_on_with_begun(const Request& request, wire::Writer& out);

// The reply to a batch. Each element has its own outcome, and its sentence while there is room for it. Eight elements
// are served in a turn, because a batch of 253 creates takes a millisecond. The descriptors of served elements count
// for their user while they wait for the next turn. Without room for that the rest is served in this turn.
template <class Reply>
class BatchAnswer {
 public:
  static constexpr std::size_t kElementsOfTurn = 8;

  BatchAnswer(const Request& request, std::size_t count)
      : request_(request), out_(request.writer()), detail_room_(wire::detail_room(count, sizeof(Reply))) {
    if (auto before = std::move(request.session.batch); before && before->belongs_to(request)) {
      before->resume();
      out_ = before->out;
      first_ = next_ = before->next;
      return;
    }
    out_.begin_batch<Reply>(request.reply_op(), request.packet.header.tag, count);
    first_ = next_ = go_on_with_begun(request, out_);
  }
  // The element to continue with. Earlier turns have served the elements before it.
  std::size_t first() const { return first_; }
  // Whether the rest has to wait for the next turn. Call it before each element.
  bool turn_is_over() {
    if (next_ - first_ < kElementsOfTurn) return false;
    if (const std::size_t lent = request_.ledger.reply.owned.size();
        lent != 0 && !request_.ledger.accounts.may_wait(request_.session.uid, lent))
      return false;
    request_.session.batch = std::make_shared<BatchUnderWay>(request_, out_, next_);
    store_begun(request_, *request_.session.batch);
    request_.yield();
    return true;
  }
  void ok(Reply reply, std::uint16_t fd_index = SHMBW_NO_FD) {
    reply.outcome = {0, fd_index, 0};
    out_.element(next_++, reply);
  }
  void fail(const Error& error) {
    request_.ledger.accounts.note_refusal(error);
    Reply reply{};
    std::string detail = wire::element_detail(error, std::min(out_.room(), detail_room_));
    reply.outcome = {static_cast<std::int32_t>(error.status), SHMBW_NO_FD, static_cast<std::uint16_t>(detail.size())};
    out_.element(next_++, reply);
    out_.text(detail);
  }
  void send() {
    if (!request_.silent()) request_.send(out_);
  }

 private:
  const Request& request_;
  wire::Writer out_;
  std::size_t detail_room_;  // an even share, so that the last element's sentence is as good as the first's
  std::size_t next_ = 0, first_ = 0;
};

// Opens a batch whose elements name `texts(element)` bytes of text each. Nothing is done before the whole batch is
// known to be well formed. nullopt: an error was sent as the reply (nothing is sent for one-way requests).
template <class Element, class Texts>
std::optional<wire::BatchView> open_batch(const Request& request, Texts texts) {
  auto refuse = [&](Status status) {
    if (!request.silent()) request.refuse_struct(status);
    return std::nullopt;
  };
  auto batch = wire::BatchView::open(request.packet);
  if (!batch) return refuse(batch.error());
  wire::TextReader reader = batch->texts();
  for (std::size_t i = 0; i < batch->count(); ++i) {
    auto element = batch->template element<Element>(i);
    if (!element) return refuse(element.error());
    if (!reader.take(texts(*element))) return refuse(Status::invalid);
  }
  if (!reader.done()) return refuse(Status::invalid);
  return *batch;
}

Error no_own_memory();
void dispatch(Ledger& ledger, Session& session, const wire::PacketView& packet);

// One handler for every message of the table: serve_create(request) for CREATE, and so on.
#define SHMB_HANDLER(op, name, batch) void serve_##name(const Request& request);
SHMBW_REQUESTS(SHMB_HANDLER)
#undef SHMB_HANDLER

// How many descriptors a request of that kind, or an element of it, must bring, by its other fields (law 8). `brought`:
// how many came with the packet. The handler says what is wrong with the fields.
#define SHMB_BROUGHT_BY(op, name, batch) std::size_t brought_by(const shmbw_##name& wish, std::size_t brought);
SHMBW_REQUESTS_WITH_FDS(SHMB_BROUGHT_BY)
#undef SHMB_BROUGHT_BY

}  // namespace shmb::daemon
