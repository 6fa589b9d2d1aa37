// SPDX-License-Identifier: Apache-2.0
// See stored_answer.hpp.
#include "daemon/serve/stored_answer.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "daemon/serve/records.hpp"

namespace shmb::daemon {
namespace {

constexpr std::size_t kFront = sizeof(shmbw_header);
// What a large answer leaves to later ones.
constexpr std::size_t kRoomKept = 4096;

void set(Books& books, StoredAnswer& stored, std::uint64_t number, std::uint32_t next, wire::Bytes bytes) {
  stored.number = number;
  stored.next = next;
  if (stored.bytes.capacity() > kRoomKept && bytes.size() <= kRoomKept) stored.bytes = {};
  stored.bytes.assign(bytes.begin(), bytes.end());
  books.answers.note(stored);
}

template <class T>
T at(std::span<const std::byte> from, std::size_t size) {
  T out{};
  std::memcpy(&out, from.data(), std::min({from.size(), sizeof out, size}));
  return out;
}

// A struct of the answer, as long as its writer knew it.
template <class Wish, class Reply>
Result<void> lend_one(const Request& request, wire::Bytes wished, std::span<std::byte> part) {
  auto reply = at<Reply>(part, part.size());
  const auto wish = wire::read_struct<Wish>(wished);
  if (!wish) return error(Status::invalid, "the request that came again is another one");
  auto lent = lend_again(request, *wish, reply);
  if constexpr (requires { reply.outcome; }) {
    if (!lent && lent.error().status == Status::not_found) {
      reply.outcome = {static_cast<std::int32_t>(Status::not_found), SHMBW_NO_FD, 0};
      lent = {};
    }
  }
  std::memcpy(part.data(), &reply, std::min(sizeof reply, part.size()));
  return lent;
}

// The descriptors of the first `served` elements of the answer in `bytes`, or of one that is no batch.
template <class Wish, class Reply, bool batch>
Result<void> lend_all(const Request& request, std::span<std::byte> bytes, std::size_t served) {
  const auto header = at<shmbw_header>(bytes, sizeof(shmbw_header));
  if constexpr (!batch) {
    return lend_one<Wish, Reply>(request, request.packet.fixed, bytes.subspan(kFront, header.fixed));
  } else {
    const auto wishes = wire::BatchView::open(request.packet);
    const auto answers = at<shmbw_batch>(bytes.subspan(kFront), header.fixed);
    if (!wishes || wishes->count() != answers.count)
      return error(Status::invalid, "the request that came again is another one");
    std::span<std::byte> rest = bytes.subspan(kFront + header.fixed);
    for (std::size_t i = 0; i < std::min<std::size_t>(served, answers.count); ++i) {
      const auto part = rest.subspan(i * answers.element_size, answers.element_size);
      if (at<shmbw_outcome>(part, part.size()).status != 0) continue;
      SHMB_TRY_VOID(lend_one<Wish, Reply>(request, wishes->bytes_of(i), part));
    }
    return {};
  }
}

Result<void> lend_all(const Request& request, std::span<std::byte> bytes, std::size_t served) {
  switch (request.packet.header.op) {
#define SHMB_CASE(op, name, batch) \
  case op:                         \
    return lend_all<shmbw_##name, shmbw_##name##_reply, batch>(request, bytes, served);
    SHMBW_REQUESTS_LENDING(SHMB_CASE)
#undef SHMB_CASE
    default:
      return {};
  }
}

// Whether the bytes can be those of an answer: all that is read of them lies inside. `begun`: its size is not in its
// header yet.
bool sound(const StoredAnswer& stored) {
  if (stored.bytes.size() < kFront || stored.bytes.size() > SHMBW_MAX_MESSAGE) return false;
  const auto header = at<shmbw_header>(stored.bytes, kFront);
  const std::size_t rest = stored.bytes.size() - kFront;
  if ((header.op & SHMBW_REPLY) == 0 || header.tag != stored.number || header.fixed > rest) return false;
  if (stored.next == 0 && header.size != stored.bytes.size()) return false;
  const wire::Traits& traits = wire::traits_of(header.op & ~SHMBW_REPLY);
  if (!traits.batch || header.status != 0) return stored.next == 0;
  const auto batch = at<shmbw_batch>(std::span(stored.bytes).subspan(kFront), header.fixed);
  return header.fixed >= sizeof batch && batch.element_size >= sizeof(shmbw_outcome) && batch.count > stored.next &&
         std::size_t{batch.count} * batch.element_size <= rest - header.fixed;
}

// Makes one answer of its parts. Empty: they are not all there, or contradict each other.
std::vector<std::byte> joined(std::vector<const books::AnswerRecord*>& parts) {
  std::vector<std::byte> out;
  std::ranges::sort(parts, {}, [](const auto* part) { return part->index; });
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const books::AnswerRecord& part = *parts[i];
    if (part.index != i || part.size != parts[0]->size || part.next != parts[0]->next) return {};
    const std::size_t here =
        std::min<std::size_t>(part.bytes.size(), part.size - std::min<std::size_t>(part.size, out.size()));
    const auto bytes = std::as_bytes(std::span(part.bytes)).first(here);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
  if (out.size() != parts[0]->size) out.clear();
  return out;
}

}  // namespace

std::uint32_t parts_of(const StoredAnswer& answer) {
  constexpr std::size_t kPart = books::AnswerRecord{}.bytes.size();
  return static_cast<std::uint32_t>((answer.bytes.size() + kPart - 1) / kPart);
}

books::AnswerRecord part_of(const StoredAnswer& answer, std::uint32_t index) {
  books::AnswerRecord out;
  out.id = answer.session;
  out.number = answer.number;
  out.index = index;
  out.size = static_cast<std::uint32_t>(answer.bytes.size());
  out.next = answer.next;
  const auto rest = std::span(answer.bytes).subspan(index * out.bytes.size());
  std::memcpy(out.bytes.data(), rest.data(), std::min(rest.size(), out.bytes.size()));
  return out;
}

void store_answer(const Request& request, wire::Bytes answer) {
  SessionNumbers& numbers = request.session.numbers;
  Books& books = request.ledger.host.books;
  if (numbers.begun.number != 0) set(books, numbers.begun, 0, 0, {});
  const wire::Traits& traits = wire::traits_of(request.packet.header.op);
  if (!answer.empty() && !wire::is_served_again(traits, request.packet.fixed))
    set(books, numbers.answer, request.packet.header.tag, 0, answer);
}

void repeat_answer(const Request& request) {
  const StoredAnswer& stored = request.session.numbers.answer;
  Ledger& ledger = request.ledger;
  const shmbw_header& asked = request.packet.header;
  auto answer = at<shmbw_header>(stored.bytes, kFront);
  const std::string which = "packet " + std::to_string(asked.tag) + " of the session came again";
  if (stored.number != asked.tag || answer.op != (asked.op | SHMBW_REPLY))
    return request.session.link->drop(which + ", and it is not the one whose answer was stored");
  const std::span<std::byte> bytes(ledger.reply.buffer.get(), stored.bytes.size());
  std::ranges::copy(stored.bytes, bytes.begin());
  if (answer.status == 0)
    if (auto lent = lend_all(request, bytes, SHMBW_MAX_BATCH); !lent) {
      ledger.reply.fds.clear();
      ledger.reply.owned.clear();
      if (lent.error().status == Status::not_found) return request.fail(lent.error());
      return request.session.link->drop(which + ", and its answer has no descriptors: " + lent.error().sentence);
    }
  answer.n_fds = static_cast<std::uint16_t>(ledger.reply.fds.size());
  std::memcpy(bytes.data(), &answer, sizeof answer);
  request.session.link->reply(bytes, ledger.reply.fds);
  ledger.reply.fds.clear();
  ledger.reply.owned.clear();
}

void store_begun(const Request& request, const BatchUnderWay& batch) {
  SessionNumbers& numbers = request.session.numbers;
  if (numbers.on)
    set(request.ledger.host.books, numbers.begun, batch.tag, static_cast<std::uint32_t>(batch.next), batch.written);
}

std::size_t go_on_with_begun(const Request& request, wire::Writer& out) {
  const StoredAnswer& begun = request.session.numbers.begun;
  const shmbw_header& asked = request.packet.header;
  if (begun.number == 0 || begun.number != asked.tag) return 0;
  const std::span<std::byte> bytes(request.ledger.reply.buffer.get(), begun.bytes.size());
  const auto fresh = at<shmbw_batch>(bytes.subspan(kFront), sizeof(shmbw_batch));
  const auto before = at<shmbw_batch>(std::span(begun.bytes).subspan(kFront), sizeof(shmbw_batch));
  const auto header = at<shmbw_header>(begun.bytes, kFront);
  if (header.op != (asked.op | SHMBW_REPLY) || before.count != fresh.count ||
      before.element_size != fresh.element_size) {
    request.session.link->drop("packet " + std::to_string(asked.tag) +
                               " of the session came again, and it is not the one that was served in part");
    return 0;
  }
  std::ranges::copy(begun.bytes, bytes.begin());
  out.go_on_at(bytes.size());
  if (auto lent = lend_all(request, bytes, begun.next); !lent)
    request.session.link->drop(
        "packet " + std::to_string(asked.tag) +
        " of the session came again, and its answer has no descriptors: " + lent.error().sentence);
  return begun.next;
}

Result<Lease*> lease_again(const Request& request, const shmbw_region_ref& region) {
  Region* const found = request.ledger.regions.find(region.id);
  Lease* const lease = found ? find_lease(request.session, *found) : nullptr;
  if (!lease) return std::unexpected(no_lease(region.id));
  return lease;
}

void load_answers(Ledger& ledger, const books::LastBooks& last) {
  for (const auto& [id, session] : ledger.sessions.all)
    if (session.numbers.on) ledger.host.books.store.expect<books::AnswerRecord>();
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<books::AnswerRecord>> all;  // by session and number
  last.each<books::AnswerRecord>([&](const books::AnswerRecord& part) { all[{part.id, part.number}].push_back(part); });
  for (auto& [whose, records] : all) {
    Session* const session = ledger.sessions.find(whose.first);
    if (!session || !session->numbers.on) continue;
    SessionNumbers& numbers = session->numbers;
    std::vector<const books::AnswerRecord*> parts;
    for (const books::AnswerRecord& record : records) parts.push_back(&record);
    StoredAnswer found(whose.first);
    found.number = whose.second;
    found.bytes = joined(parts);
    found.next = records[0].next;
    const bool whole = found.next == 0;
    if (!sound(found) || (whole ? found.number > numbers.answered : found.number != numbers.served + 1)) {
      ledger.host.log(3, "the last broker's books: the answer to packet " + std::to_string(found.number) +
                             " of session " + std::to_string(whose.first) + " is damaged, and lost");
      continue;
    }
    set(ledger.host.books, whole ? numbers.answer : numbers.begun, found.number, found.next, found.bytes);
  }
}

void end_numbers(Books& books, SessionNumbers& numbers) {
  for (StoredAnswer* const stored : {&numbers.answer, &numbers.begun}) {
    books.answers.forget(*stored);
    for (std::uint32_t& place : stored->places) books.store.erase<books::AnswerRecord>(place);
  }
  books.end<books::PacketsRecord>(books.numbers, numbers);
}

}  // namespace shmb::daemon
