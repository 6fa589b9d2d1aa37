// SPDX-License-Identifier: Apache-2.0
// From a packet to its handler. A packet that breaks the frame drops its peer. Any other fault is an error reply, and
// the session goes on.
//
// The checks come in this order, from those that need the least knowledge of the request:
// 0. With the feature RESUME: it is the next packet of its session (numbers.hpp), or the last answer is sent again
//    (stored_answer.hpp). Any other packet is dropped.
// 1. The number of descriptors is the one that the table asks for. Without this rule a client could fill the broker's
//    descriptor table.
// 2. The session is greeted, or this is its HELLO.
// 3. The header: no unknown flag, and no_reply only where the table allows it.
// 4. The number of the request is known.
// 5. The broker has memory. Without memory it serves only requests that give something back.
//
// Handlers, numbers of descriptors and no_reply come from the table of messages (proto/messages.toml). A new message
// has its handler here by its name: serve_NAME.
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <utility>

#include "daemon/serve/answer.hpp"
#include "daemon/serve/records.hpp"
#include "daemon/serve/stored_answer.hpp"

namespace shmb::daemon {

void Request::note_served(wire::Bytes answer) const {
  if (!session.numbers.serve(packet.header.tag, !answer.empty())) return;
  ledger.host.books.numbers.note(session.numbers);
  store_answer(*this, answer);
}

void Request::fail(const Error& error) const {
  ledger.accounts.note_refusal(error);
  if (silent()) return note_served();
  auto buffer = std::span(ledger.reply.buffer.get(), std::size_t{SHMBW_MAX_MESSAGE});
  const wire::Bytes answer = wire::write_error_reply(buffer, packet.header.op, packet.header.tag, error);
  note_served(answer);
  write_books(ledger);
  session.link->reply(answer, {});
}

void Request::hold() const {
  --ledger.accounts.requests;
  session.held = true;
  session.link->hold();
}

void Request::yield() const {
  --ledger.accounts.requests;
  ledger.accounts.holders = {};  // of this request alone
  session.held = true;
  session.link->yield();
}

void Request::refuse_struct(Status status) const {
  if (status == Status::too_new)
    fail(Status::too_new, "the request uses fields that this broker (" + ledger.host.facts.version + ") does not know");
  else fail(Status::invalid, "the request's sizes do not add up: element count and size, or the lengths of its texts");
}

void Request::send(wire::Writer& out) const {
  const wire::Bytes answer = out.finish(ledger.reply.fds.size());
  if (answer.empty()) {
    fail(Status::system, "own bug: the reply did not fit into one message");
  } else {
    note_served(answer);
    write_books(ledger);  // before the reply leaves (law 1)
    session.link->reply(answer, ledger.reply.fds);
  }
  ledger.reply.fds.clear();
  ledger.reply.owned.clear();
}

BatchUnderWay::BatchUnderWay(const Request& request, const wire::Writer& writer, std::size_t next_element)
    : ledger(request.ledger),
      uid(request.session.uid),
      op(request.packet.header.op),
      tag(request.packet.header.tag),
      out(writer),
      next(next_element),
      written(ledger.reply.buffer.get(), ledger.reply.buffer.get() + (SHMBW_MAX_MESSAGE - out.room())),
      fds(std::exchange(ledger.reply.fds, {})),
      owned(std::exchange(ledger.reply.owned, {})) {
  ledger.accounts.count_waiting(uid, std::ssize(owned));
}

BatchUnderWay::~BatchUnderWay() { ledger.accounts.count_waiting(uid, -std::ssize(owned)); }

bool BatchUnderWay::belongs_to(const Request& request) const {
  if (op == request.packet.header.op && tag == request.packet.header.tag) return true;
  ledger.host.own_bug("own bug: a request was served in part, and another one came instead of its rest");
  return false;
}

void BatchUnderWay::resume() {
  ledger.accounts.count_waiting(uid, -std::ssize(owned));
  std::ranges::copy(written, ledger.reply.buffer.get());
  ledger.reply.fds = std::exchange(fds, {});
  ledger.reply.owned = std::exchange(owned, {});
}

namespace {

using Handler = void (*)(const Request&);

constexpr auto kHandlers = [] {
  std::array<Handler, wire::kTraits.size()> table{};
#define SHMB_ROW(op, name, batch) table[op] = serve_##name;
  SHMBW_REQUESTS(SHMB_ROW)
#undef SHMB_ROW
  return table;
}();

// As far as the sender knows the struct.
template <class T>
T known_part(wire::Bytes bytes) {
  T out{};
  std::memcpy(&out, bytes.data(), std::min(bytes.size(), sizeof out));
  return out;
}

template <class Wanted, bool batch>
std::size_t count_brought(const wire::PacketView& packet) {
  if constexpr (!batch) {
    return brought_by(known_part<Wanted>(packet.fixed), packet.header.n_fds);
  } else {
    auto elements = wire::BatchView::open(packet);
    std::size_t sum = 0;
    for (std::size_t i = 0; elements && i < elements->count(); ++i)
      sum += brought_by(known_part<Wanted>(elements->bytes_of(i)), packet.header.n_fds);
    return sum;
  }
}

// How many descriptors a request must bring (law 8).
std::size_t descriptors_of(const wire::PacketView& packet) {
  switch (packet.header.op) {
#define SHMB_CASE(op, name, batch) \
  case op:                         \
    return count_brought<shmbw_##name, batch>(packet);
    SHMBW_REQUESTS_WITH_FDS(SHMB_CASE)
#undef SHMB_CASE
    default:
      return 0;
  }
}

// The refusal is sent also where the header asks for no reply: such a header is not understood.
void refuse_aloud(const Request& request, Status status, std::string_view sentence) {
  shmbw_header answered = request.packet.header;
  answered.flags = static_cast<std::uint16_t>(answered.flags & ~SHMBW_HEADER_NO_REPLY);
  const wire::PacketView view{answered, request.packet.fixed, request.packet.rest};
  Request{request.ledger, request.session, view}.fail(status, sentence);
}

// Requests that give something back need none, and neither does the rest of a request that was served in part.
bool needs_memory(const Session& session, std::uint16_t op, const wire::Traits& traits) {
  if (session.batch || session.numbers.begun.number != 0 || !session.awaited.empty()) return false;
  if (traits.spends || traits.no_reply == wire::NoReply::always) return false;
  switch (op) {
    case SHMBW_OP_STATUS:
    case SHMBW_OP_GROUP_LEAVE:
    case SHMBW_OP_GROUP_END:
    case SHMBW_OP_TICKET_REVOKE:
    case SHMBW_OP_TICKETS_RELEASE:
    case SHMBW_OP_SHELF_EMPTY:
      return false;
    default:
      return true;
  }
}

}  // namespace

Error no_own_memory() {
  return plain(Status::no_memory,
               "the broker's own memory is used up: it only takes things back until it has some again. Ask a moment "
               "later, release what is not needed, or give the broker more (MemoryMax of its unit, RLIMIT_AS)");
}

void dispatch(Ledger& ledger, Session& session, const wire::PacketView& packet) {
  const shmbw_header& header = packet.header;
  const Request request{ledger, session, packet};
  // Its sender repeats what a dead broker may have lost. What this one has is not served twice, and what comes too
  // early comes again.
  const wire::Traits& traits = wire::traits_of(header.op);
  const bool has_answer =
      traits.no_reply != wire::NoReply::always && !(request.silent() && wire::may_have_no_reply(traits, packet.fixed));
  const bool resumed = (header.flags & SHMBW_HEADER_RESUMED) != 0;
  const Numbers::Due due = session.numbers.due({header.tag, has_answer, resumed});
  if (due == Numbers::Due::over || due == Numbers::Due::early) return;
  if (due == Numbers::Due::repeated && !wire::is_served_again(traits, packet.fixed)) return repeat_answer(request);
  ++ledger.accounts.requests;
  if (header.n_fds != descriptors_of(packet))
    return session.link->drop("descriptors in a request that takes none, or none in one that takes one");
  if (session.phase == Phase::refused) return session.link->drop("a request after HELLO was refused for good");
  const bool hello = header.op == SHMBW_OP_HELLO;
  if (!hello && !session.greeted()) return session.link->drop("a request before HELLO");
  // First of all: a broker that does not know a flag does not know what the flag does to the other fields.
  if ((header.flags & ~SHMBW_HEADER_KNOWN) != 0)
    return refuse_aloud(request, Status::unknown_flags, "the header has a flag that this broker does not know");
  if (request.silent() && !wire::may_have_no_reply(traits, packet.fixed))
    return refuse_aloud(request, Status::invalid, "no_reply is for " + std::string(wire::kNoReplyNames) + " only");
  if (header.status != 0 && traits.no_reply != wire::NoReply::always)
    return request.fail(Status::invalid, "a request's status must be 0");
  if (hello && session.greeted()) return request.fail(Status::invalid, "HELLO was answered already on this connection");
  if (!traits.known())
    return request.fail(Status::unknown_op, "request " + std::to_string(header.op) + " is not known to this broker (" +
                                                ledger.host.facts.version + ")");
  if (!ledger.has_memory() && needs_memory(session, header.op, traits)) return request.fail(no_own_memory());
  kHandlers[header.op](request);
  if (!session.held) request.note_served();
}

}  // namespace shmb::daemon
