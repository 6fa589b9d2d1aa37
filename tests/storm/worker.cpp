// SPDX-License-Identifier: Apache-2.0
// See worker.hpp. Every call has a deadline; every status that a well-kept pool may answer is expected here by name,
// and anything else, as any content that is not what was sent, ends the storm with a sentence.
#include "tests/storm/worker.hpp"

#include <time.h>

#include <array>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/queue/queue_set.hpp"
#include "client/session/connect.hpp"
#include "tests/storm/content.hpp"
#include "tests/storm/topology.hpp"

namespace storm {
namespace {

using namespace shmb;
using namespace shmb::client;

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kMostSends = 5;  // in one turn
constexpr std::uint64_t kRegionMark = 0x7265u, kRegionBytes = 8192;

// The kind of a call, in Worker::doing.
enum Doing : std::uint32_t { joining, opening, sending, receiving, acquiring, letting_go, waiting, leaving };
const char* const kDoing[] = {"joining",   "opening",          "sending", "receiving",
                              "acquiring", "letting slots go", "waiting", "leaving"};

class Life {
 public:
  Life(Ledger& ledger, const Place& place, std::uint32_t worker, std::uint64_t seed)
      : ledger_(ledger),
        place_(place),
        number_(worker),
        me_(ledger.workers[worker]),
        role_(kRoles[worker]),
        dice_(seed) {}

  int run() {
    const bool good = join() && open_ends() && work() && leave();
    return good || !ledger_.bad() ? 0 : 1;
  }

 private:
  struct Seen {
    std::uint32_t first = 0, last = 0;
  };
  struct Reader {
    std::uint32_t queue = 0;
    std::unique_ptr<Queue> it;
    std::uint64_t opened = 0;
    std::unordered_map<std::uint32_t, Seen> streams;
    std::uint32_t scanned = 0;            // of the ledger's streams
    std::vector<std::uint32_t> expected;  // began after this reader, and are not over yet
  };
  struct Writer {
    std::uint32_t queue = 0, stream = 0, next = 1;
    std::unique_ptr<Queue> it;
  };
  struct Kept {
    std::uint32_t queue;
    std::uint64_t ident;
    std::unique_ptr<Message> message;
  };

  std::uint64_t roll(std::uint64_t below) { return dice_() % below; }
  bool one_in(std::uint64_t n) { return roll(n) == 0; }
  void beat(Doing what) {
    me_.doing.store(what, std::memory_order_relaxed);
    me_.beats.fetch_add(1, std::memory_order_relaxed);
  }
  static void rest(std::int64_t nanoseconds) {
    const timespec time{0, nanoseconds};
    ::nanosleep(&time, nullptr);
  }
  bool fail(const std::string& what) {
    ledger_.fail("process " + std::to_string(number_) + ", life " + std::to_string(me_.lives.load()) + ": " + what);
    return false;
  }
  bool fail(const char* where, const Error& error) {
    return fail(std::string(where) + ": status " + std::to_string(static_cast<int>(error.status)) + ": " +
                error.sentence);
  }
  std::int64_t some_wait() {
    switch (roll(4)) {
      case 0:
        return static_cast<std::int64_t>(1 + roll(4)) * kMillisecond;
      case 1:
        return static_cast<std::int64_t>(1 + roll(300)) * 1'000;
      default:
        return kNoWait;
    }
  }

  bool join() {
    beat(joining);
    ConnectOptions options;
    options.socket = place_.socket;
    options.no_group = true;
    auto session = connect(options);
    if (!session) return fail("connect", session.error());
    session_ = std::move(*session);
    if (auto joined = session_->join_group("#" + std::to_string(place_.group), 0, Deadline::after(0)); !joined)
      return fail("joining the group", joined.error());
    for (;;) {
      beat(joining);
      Pool::Opening opening;
      opening.id = place_.pool;
      auto pool = Pool::open(session_, opening);
      if (pool) {
        pool_ = std::move(*pool);
        return true;
      }
      // Places of the dead are free again when their messages have been read.
      if (pool.error().status != Status::limit) return fail("joining the pool", pool.error());
      if (ledger_.leave.load() != 0) return false;
      rest(kMillisecond);
    }
  }

  bool open_ends() {
    for (const std::uint32_t queue : role_.reads) {
      Reader reader;
      reader.queue = queue;
      if (!open(queue, true, reader.it, nullptr)) return false;
      reader.opened = ++ledger_.openings;
      reader.scanned = ledger_.streams.load();
      readers_.push_back(std::move(reader));
    }
    for (const std::uint32_t queue : role_.writes) {
      Writer writer;
      writer.queue = queue;
      writer.stream = ledger_.streams.fetch_add(1);
      if (writer.stream >= kMostStreams) return fail("the ledger is full");
      Stream& stream = ledger_.stream[writer.stream];
      stream.worker.store(number_);
      stream.opened.store(++ledger_.openings);
      stream.queue.store(queue + 1, std::memory_order_release);
      me_.stream[writers_.size()].store(writer.stream + 1);
      if (!open(queue, false, writer.it, &stream)) return false;
      writers_.push_back(std::move(writer));
    }
    return true;
  }

  bool open(std::uint32_t queue, bool reads, std::unique_ptr<Queue>& into, Stream* stream) {
    for (;;) {
      beat(opening);
      if (stream != nullptr) stream->opened.store(++ledger_.openings);
      auto opened = Queue::open(pool_, queue_plan(queue, reads, !reads));
      if (opened) {
        into = std::move(*opened);
        return true;
      }
      // The end of the life before is not known to be over, or its lanes are not read yet.
      if (opened.error().status != Status::busy && opened.error().status != Status::limit)
        return fail(queue_name(queue), opened.error());
      if (ledger_.leave.load() != 0) return false;
      rest(kMillisecond / 2);
    }
  }

  bool work() {
    const bool by_set = one_in(3) && !readers_.empty();
    QueueSet set;
    if (by_set)
      for (Reader& reader : readers_)
        if (auto added = set.add(*reader.it, &reader); !added) return fail("adding to a set", added.error());
    while (ledger_.leave.load(std::memory_order_relaxed) == 0) {
      if (ledger_.bad()) return false;
      bool any = false;
      if (ledger_.stop_sending.load(std::memory_order_relaxed) == 0) {
        for (Writer& writer : writers_) {
          for (std::uint64_t n = roll(kMostSends + 1); n > 0; --n)
            if (!send_one(writer)) return false;
          // Full, but for the next turn's, of which each may send a slot twice: a newcomer begins again.
          if (writer.next + 2 * kMostSends >= kMostMessages) return true;
        }
        if (one_in(3000)) return true;  // leaves in good order
      }
      if (by_set) {
        beat(waiting);
        if (auto ready = set.wait(some_wait());
            !ready && ready.error().status != Status::deadline && ready.error().status != Status::empty)
          return fail("waiting for a set", ready.error());
      }
      for (Reader& reader : readers_)
        for (std::uint64_t n = 1 + roll(8); n > 0; --n) {
          bool got = false;
          if (!receive_one(reader, by_set, got)) return false;
          if (!got) break;
          any = true;
        }
      if (any) me_.idle.store(0);
      else me_.idle.fetch_add(1);
      if (role_.slow && any) rest(static_cast<std::int64_t>(roll(1'000'000)));
      while (kept_.size() > 4 || (!kept_.empty() && (one_in(4) || !any)))
        if (!drop_kept(roll(kept_.size()))) return false;
    }
    return true;
  }

  bool leave() {
    me_.doing.store(leaving);
    while (!kept_.empty())
      if (!drop_kept(0)) return false;
    for (Writer& writer : writers_)
      if (auto closed = writer.it->close(false, false); !closed) return fail("closing a writer", closed.error());
    for (Reader& reader : readers_)
      if (auto closed = reader.it->close(false, false); !closed) return fail("closing a reader", closed.error());
    writers_.clear();
    readers_.clear();
    region_.reset();
    pool_.reset();
    return true;
  }

  // Sending

  Ident begin(Writer& writer) {
    ledger_.stream[writer.stream].attempted.store(writer.next);
    return {writer.stream, writer.next};
  }
  // True: it is on its way. A message that was refused gives its number to the next one.
  bool ended(Writer& writer, const Result<void>& sent, bool& good) {
    good = true;
    if (sent) {
      ledger_.stream[writer.stream].sent.store(writer.next++);
      ledger_.sent[writer.queue].fetch_add(1, std::memory_order_relaxed);
      return true;
    }
    const Status why = sent.error().status;
    if (why != Status::full && why != Status::deadline && why != Status::peer_gone)
      good = fail(queue_name(writer.queue), sent.error());
    ledger_.refusals.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

  std::optional<Slot> acquire(std::uint64_t bytes, bool& good) {
    beat(acquiring);
    auto slot = pool_->acquire(bytes, one_in(4) ? kMillisecond : kNoWait);
    if (slot) return *slot;
    if (slot.error().status != Status::full && slot.error().status != Status::deadline)
      good = fail("acquiring a slot", slot.error());
    return std::nullopt;
  }
  bool release(const Slot& slot) {
    beat(letting_go);
    if (auto released = pool_->release(slot); !released) return fail("releasing a slot", released.error());
    return true;
  }
  // 24 to `most`, small ones more often.
  std::uint64_t some_bytes(std::uint64_t most) {
    const std::uint64_t words = most / 8;
    std::uint64_t n = 3 + roll(words - 2);
    if (!one_in(8)) n = 3 + (n - 3) / 16;
    return n * 8;
  }
  std::uint64_t fresh_content() { return dice_() & 0xffffffffffff; }

  bool send_one(Writer& writer) {
    bool good = true;
    beat(sending);
    if (role_.forwards && writer.queue == forward) return forward_one(writer);
    switch (roll(12)) {
      case 0:
      case 1:
      case 2:
        return send_slot(writer);
      case 3:
        return send_list(writer);
      case 4: {  // more than inline: the library takes a slot for it
        std::vector<std::byte> bytes(some_bytes(4096));
        write_content(bytes, begin(writer).word(0));
        ended(writer, writer.it->send(bytes, some_wait()), good);
        return good;
      }
      default: {
        alignas(8) std::array<std::byte, 120> body;
        const std::uint64_t most = kQueues[writer.queue].cell_size - 8;
        const std::span<std::byte> bytes = std::span(body).first(24 + 8 * roll((most - 24) / 8 + 1));
        write_content(bytes, begin(writer).word(0));
        ended(writer, writer.it->send(bytes, some_wait()), good);
        return good;
      }
    }
  }

  bool send_slot(Writer& writer) {
    bool good = true;
    auto slot = acquire(some_bytes(one_in(20) ? 65536 : 4096), good);
    if (!slot) return good;
    const std::uint64_t content = fresh_content();
    const std::uint64_t length = slot->length;
    write_content({slot->data, length}, content);
    for (std::uint64_t times = one_in(3) ? 2 : 1; times > 0 && good; --times) {
      OutPart part;
      part.kind = PartKind::slot;
      part.slot = *slot;
      beat(sending);
      const std::uint64_t ident = begin(writer).word(content);
      if (ended(writer, writer.it->send(std::span(&part, 1), ident, 0, some_wait()), good) && times == 1)
        ledger_.twice.fetch_add(1, std::memory_order_relaxed);
    }
    return release(*slot) && good;
  }

  bool make_region() {
    if (region_) return true;
    CreateItem item;
    item.length = kRegionBytes;
    item.group = place_.group;
    item.flags = SHMBW_CREATE_MANY_WRITERS;
    auto made = create_region(session_, item);
    if (!made) return fail("creating a region", made.error());
    region_ = std::move(*made);
    write_content(region_->bytes().first(kRegionBytes), kRegionMark << 48 | fresh_content() >> 16);
    return true;
  }

  bool send_list(Writer& writer) {
    bool good = true;
    const std::uint64_t content = fresh_content();
    std::vector<OutPart> parts;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Slot> slots;
    const bool large = one_in(30);  // larger than every slot: it travels in a region
    const std::uint64_t count = 2 + roll(large ? 30 : 8);
    bytes.reserve(count);
    bool with_region = false;
    for (std::uint64_t i = 0; i < count && good; ++i) {
      OutPart part;
      const std::uint64_t kind = i == 0 ? 0 : roll(large ? 3 : 8);
      if (kind == 7 && one_in(4)) {
        if (!make_region()) good = false;
        part.kind = PartKind::region;
        part.region = region_.get();
        with_region = true;
      } else if (kind >= 4) {
        auto slot = acquire(some_bytes(1024), good);
        if (!slot) break;
        write_content({slot->data, slot->length}, mix(content + i));
        slots.push_back(*slot);
        part.kind = PartKind::slot;
        part.slot = *slot;
      } else {
        bytes.emplace_back(large ? 8192 : some_bytes(256));
        write_content(bytes.back(), i == 0 ? content : mix(content + i));
        part.data = bytes.back().data();
        part.length = bytes.back().size();
      }
      parts.push_back(std::move(part));
    }
    if (good && !slots.empty() && one_in(3)) {  // the first one a second time
      OutPart again;
      again.kind = PartKind::slot;
      again.slot = slots.front();
      parts.push_back(std::move(again));
    }
    if (good && parts.size() > 1) {
      beat(sending);
      const std::uint64_t ident = begin(writer).word(content);
      if (ended(writer, writer.it->send(parts, ident, 0, some_wait()), good)) {
        ledger_.lists.fetch_add(1, std::memory_order_relaxed);
        if (with_region) ledger_.regions.fetch_add(1, std::memory_order_relaxed);
      }
    }
    for (const Slot& slot : slots) good = release(slot) && good;
    return good;
  }

  // A slot that was kept out of claim_a is sent on itself, without a copy.
  bool forward_one(Writer& writer) {
    bool good = true;
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      Message& message = *kept_[i].message;
      if (kept_[i].queue != claim_a || message.count() != 1 || message.part(0).kind != PartKind::slot) continue;
      std::uint64_t content = 0;
      const auto& part = message.part(0);
      if (const char* wrong = content_fault({part.data, part.length}, content))
        return fail("a kept slot of " + std::string(queue_name(claim_a)) + ": " + wrong);
      auto slot = message.take_slot(0);
      if (!slot) return fail("taking a slot out", slot.error());
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      OutPart out;
      out.kind = PartKind::slot;
      out.slot = *slot;
      const std::uint64_t ident = begin(writer).word(content);
      if (ended(writer, writer.it->send(std::span(&out, 1), ident, 0, some_wait()), good))
        ledger_.forwarded.fetch_add(1, std::memory_order_relaxed);
      return release(*slot) && good;
    }
    alignas(8) std::array<std::byte, 48> body;
    write_content(body, begin(writer).word(0));
    ended(writer, writer.it->send(body, some_wait()), good);
    return good;
  }

  // Receiving

  // The ident of the message, or 0 after fail(). Not told apart here: which of the two words the ident is.
  std::uint64_t read(const Message& message, const char* queue, const char* when) {
    std::uint64_t content = 0;
    auto torn = [&](const std::string& what) {
      (void)fail("a message of " + std::string(queue) + ", " + when + ": " + what);
      return 0;
    };
    for (std::size_t i = 0; i < message.count(); ++i) {
      const Message::Part& part = message.part(i);
      if (part.status != Status::ok) return torn("part " + std::to_string(i) + ": " + part.failure.sentence);
      std::uint64_t mine = 0;
      if (const char* wrong = content_fault({part.data, part.length}, mine))
        return torn("part " + std::to_string(i) + " of " + std::to_string(message.count()) + ": " + wrong);
      if (i == 0) {
        content = mine;
        continue;
      }
      const bool right = part.kind == PartKind::region ? mine >> 48 == kRegionMark
                                                       : mine == mix(content + i) || part.kind == PartKind::slot;
      if (!right) return torn("part " + std::to_string(i) + " is of another message");
      if (part.kind != PartKind::slot || mine == mix(content + i)) continue;
      bool earlier = false;  // a slot that stands twice
      for (std::size_t k = 1; k < i; ++k) earlier |= mine == mix(content + k);
      if (!earlier) return torn("slot " + std::to_string(i) + " is of another message");
    }
    if (message.type() == 0) return content;
    if (!Ident::seals(message.type(), content)) return torn("its slot is another message's");
    return message.type();
  }

  bool receive_one(Reader& reader, bool by_set, bool& got) {
    got = false;
    beat(receiving);
    const bool drop_oldest = kQueues[reader.queue].flags == pool::kQueueDropOldest;
    const bool at_least_once = kQueues[reader.queue].flags == pool::kQueueAtLeastOnce;
    const bool keep = at_least_once ? false : one_in(2);
    auto message = std::make_unique<Message>();
    note_streams(reader);
    const std::vector<std::uint32_t> over = ended_streams(reader);
    me_.receiving.store(reader.queue + 1);
    const auto received = reader.it->receive(*message, keep, by_set ? kNoWait : some_wait());
    if (!received) {
      me_.receiving.store(0);
      const Status why = received.error().status;
      if (why != Status::empty && why != Status::deadline && why != Status::peer_gone)
        return fail(queue_name(reader.queue), received.error());
      return why != Status::empty || check_over(reader, over);
    }
    got = true;
    const std::uint64_t word = read(*message, queue_name(reader.queue), "when taken");
    if (word == 0) return false;
    if (at_least_once) me_.in_hand.store(word);
    const bool good = note(reader, word);
    me_.receiving.store(0);
    if (!good) return false;
    ledger_.received[reader.queue].fetch_add(1, std::memory_order_relaxed);
    if (role_.slow && one_in(10)) rest(static_cast<std::int64_t>(roll(300'000)));
    if (keep || drop_oldest) {
      if (kept_.size() < 8) {
        kept_.push_back({reader.queue, word, std::move(message)});
        return true;
      }
    } else if (read(*message, queue_name(reader.queue), "while borrowed") != word) {
      return fail("a borrowed message became another one");
    }
    beat(letting_go);
    if (at_least_once && one_in(16)) {
      ledger_.given_back[reader.queue].fetch_add(1);
      ledger_.allow_repeat(Ident::of(word));
      me_.in_hand.store(0);  // allowed for once, whoever gives it back
      if (auto back = message->give_back(); !back) return fail("giving a message back", back.error());
    } else if (auto done = message->done(); !done) {
      return fail("done with a message", done.error());
    }
    me_.in_hand.store(0);
    return true;
  }

  bool drop_kept(std::size_t at) {
    beat(letting_go);
    Kept& kept = kept_[at];
    if (read(*kept.message, queue_name(kept.queue), "after it was kept") != kept.ident)
      return fail("a kept message became another one");
    if (auto done = kept.message->done(); !done) return fail("done with a kept message", done.error());
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }

  // Order, gaps and repetitions.
  bool note(Reader& reader, std::uint64_t word) {
    const Ident ident = Ident::of(word);
    const char* const name = queue_name(reader.queue);
    const std::string which = std::string(name) + ", message " + std::to_string(ident.sequence) + " of stream " +
                              std::to_string(ident.stream);
    if (ident.stream >= ledger_.streams.load() || ident.sequence == 0 || ident.sequence >= kMostMessages)
      return fail(which + ": nobody sent that");
    Stream& stream = ledger_.stream[ident.stream];
    if (stream.queue.load() != reader.queue + 1) return fail(which + ": sent through another queue");
    if (ident.sequence > stream.attempted.load()) return fail(which + ": not sent yet");
    Seen& seen = reader.streams[ident.stream];
    const std::uint32_t last = seen.last;
    if (kQueues[reader.queue].kind == Kind::mpmc) {
      if ((stream.takings[ident.sequence].fetch_add(kTaken) & kMostTaken) + 1 == kMostTaken)
        return fail(which + " comes again and again");
      if (last >= ident.sequence) ledger_.late[reader.queue].fetch_add(1);  // allowed for what came back
      seen.last = std::max(last, ident.sequence);
      return true;
    }
    if (last >= ident.sequence) return fail(which + " came after message " + std::to_string(last));
    if (last == 0) seen.first = ident.sequence;
    const bool gap = last != 0 && ident.sequence != last + 1;
    if (kQueues[reader.queue].flags == pool::kQueueDropOldest) {
      if (gap) ledger_.lost[reader.queue].fetch_add(ident.sequence - last - 1, std::memory_order_relaxed);
    } else if (gap) {
      return fail(which + " came right after message " + std::to_string(last));
    }
    seen.last = ident.sequence;
    return true;
  }

  // Streams of lines that began after this reader had opened its end: it must see all of them, from the first message.
  void note_streams(Reader& reader) {
    const Kind kind = kQueues[reader.queue].kind;
    if (kind == Kind::mpmc || kQueues[reader.queue].flags != 0) return;
    for (const std::uint32_t now = ledger_.streams.load(); reader.scanned < now; ++reader.scanned) {
      const Stream& stream = ledger_.stream[reader.scanned];
      if (stream.queue.load(std::memory_order_acquire) != reader.queue + 1) continue;
      reader.expected.push_back(reader.scanned);
    }
  }
  std::vector<std::uint32_t> ended_streams(const Reader& reader) {
    std::vector<std::uint32_t> over;
    for (const std::uint32_t number : reader.expected)
      if (ledger_.stream[number].ended.load() != 0) over.push_back(number);
    return over;
  }
  // They had ended before the look that found the queue empty: all that they sent must have come.
  bool check_over(Reader& reader, const std::vector<std::uint32_t>& over) {
    for (const std::uint32_t number : over) {
      const Stream& stream = ledger_.stream[number];
      std::erase(reader.expected, number);
      const Seen seen = reader.streams[number];
      const bool from_the_start = kQueues[reader.queue].kind == Kind::spsc && stream.opened.load() > reader.opened;
      const std::uint32_t sent = stream.sent.load(), attempted = stream.attempted.load();
      if (seen.last == 0 && !from_the_start) continue;
      if (from_the_start && seen.last != 0 && seen.first != 1)
        return fail(std::string(queue_name(reader.queue)) + ": the first message of stream " + std::to_string(number) +
                    " that came was number " + std::to_string(seen.first));
      if (seen.last < sent || seen.last > attempted)
        return fail(std::string(queue_name(reader.queue)) + ": the writer of stream " + std::to_string(number) +
                    " sent " + std::to_string(sent) + " messages before its end, the last that came was number " +
                    std::to_string(seen.last));
    }
    return true;
  }

  Ledger& ledger_;
  const Place& place_;
  const std::uint32_t number_;
  Worker& me_;
  const Role& role_;
  std::mt19937_64 dice_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Pool> pool_;
  std::vector<Reader> readers_;
  std::vector<Writer> writers_;
  std::vector<Kept> kept_;
  Region::Handle region_;
};

}  // namespace

const char* queue_name(std::uint32_t queue) { return queue < queue_count ? kQueues[queue].name : "no queue"; }

const char* doing_name(std::uint32_t doing) { return doing <= leaving ? kDoing[doing] : "?"; }

int live(Ledger& ledger, const Place& place, std::uint32_t worker, std::uint64_t seed) {
  return Life(ledger, place, worker, seed).run();
}

}  // namespace storm
