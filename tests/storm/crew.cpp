// SPDX-License-Identifier: Apache-2.0
// See crew.hpp.
#include "tests/storm/crew.hpp"

#include <time.h>

#include <array>
#include <memory>
#include <random>
#include <vector>

#include "base/sys_process.hpp"
#include "client/queue/queue_set.hpp"
#include "client/session/connect.hpp"
#include "tests/storm/content.hpp"

namespace storm {
namespace {

using namespace shmb;
using namespace shmb::client;
using Kind = pool::QueueKind;

constexpr std::int64_t kWait = 3'000'000;
// The time that a call may take beyond its own deadline: its requests to the broker, and a machine with other work.
// Less than the whole of it is no finding.
constexpr std::int64_t kSlack = 20'000'000'000;
std::atomic<unsigned> sum_of_all;  // so that no read is for nothing

struct Line {
  std::string name;
  Kind kind;
  std::uint32_t flags;
};

class Member {
 public:
  Member(CrewShared& shared, const CrewPlace& place, std::uint32_t member, std::uint64_t seed)
      : shared_(shared), place_(place), number_(member), me_(shared.member[member]), dice_(seed) {}

  int run() {
    ConnectOptions options;
    options.socket = place_.socket;
    options.no_group = true;
    options.timeout = kAnswer;
    auto session = connect(options);
    if (!session) return fail("connect", session.error());
    session_ = std::move(*session);
    if (auto joined = session_->join_group("#" + std::to_string(place_.group), 0, Deadline::after(kAnswer)); !joined)
      return fail("group", joined.error());
    Pool::Opening opening;
    opening.id = place_.pool;
    opening.timeout = kAnswer;
    auto pool = Pool::open(session_, opening);
    // A vandal may have had the pool broken before we came, or be at the head of the directory.
    if (!pool && place_.trusting && (pool.error().status == Status::broken || pool.error().status == Status::version))
      return 0;
    if (!pool) return fail("pool", pool.error());
    pool_ = std::move(*pool);
    const std::string mine = std::to_string(number_), other = std::to_string(1 - number_);
    writes_ = {{"line" + mine, Kind::spsc, 0},
               {"claim", Kind::mpmc, 0},
               {"ring" + mine, Kind::broadcast, 0},
               {"drops" + mine, Kind::broadcast, pool::kQueueDropOldest},
               {"expiring", Kind::mpmc, pool::kQueueExpiring}};
    reads_ = {{"line" + other, Kind::spsc, 0},
              {"claim", Kind::mpmc, 0},
              {"ring" + other, Kind::broadcast, 0},
              {"drops" + other, Kind::broadcast, pool::kQueueDropOldest},
              {"expiring", Kind::mpmc, pool::kQueueExpiring}};
    out_.resize(writes_.size());
    in_.resize(reads_.size());
    while (shared_.stop.load() == 0 && shared_.failed.load() == 0) {
      for (std::size_t i = 0; i < writes_.size(); ++i) write(i);
      for (std::size_t i = 0; i < reads_.size(); ++i) read(i);
      if (roll(8) == 0) wait_for_all();
      while (kept_.size() > 3) {
        look_at(*kept_.front());
        kept_.erase(kept_.begin());
      }
      if (pool_->broken()) {  // for good: every call says so at once
        if (!place_.trusting) shared_.fail("the pool of nobody but us is broken");
        rest();
      }
    }
    beat(1);
    kept_.clear();
    region_.reset();
    in_.clear();
    beat(2);
    out_.clear();
    beat(3);
    pool_.reset();
    beat(4);
    session_.reset();
    return shared_.failed.load() != 0 ? 1 : 0;
  }

 private:
  std::uint64_t roll(std::uint64_t below) { return dice_() % below; }
  void beat(std::uint32_t what) {
    me_.doing.store(what, std::memory_order_relaxed);
    me_.beats.fetch_add(1, std::memory_order_relaxed);
    begun_ = sys::now_monotonic();
  }
  // Since the last beat.
  void expect_in_time(const char* call) {
    const std::int64_t took = sys::now_monotonic() - begun_;
    if (took > kWait + kSlack)
      shared_.fail(std::string(call) + " came back after " + std::to_string(took / 1'000'000) + " ms");
  }
  static void rest() {
    const timespec time{0, 1'000'000};
    ::nanosleep(&time, nullptr);
  }
  int fail(const char* where, const Error& error) {
    shared_.fail(std::string(where) + ": status " + std::to_string(static_cast<int>(error.status)) + ": " +
                 error.sentence);
    return 1;
  }
  // Ordinary, or only beside a vandal?
  void judge(const char* where, const Error& error, std::unique_ptr<Queue>* end) {
    const Status why = error.status;
    if (why == Status::full || why == Status::empty || why == Status::deadline || why == Status::peer_gone) {
      me_.refused.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    me_.broken.fetch_add(1, std::memory_order_relaxed);
    if (!place_.trusting) fail(where, error);
    if (end != nullptr && roll(4) == 0) {
      if (end->get() != nullptr) kept_.clear();
      beat(10);
      end->reset();  // begins again with ends of its own
      expect_in_time("closing a queue");
    }
  }

  bool open(const Line& line, bool reads, std::unique_ptr<Queue>& into) {
    if (into) return true;
    beat(20);
    QueueSpec spec;
    spec.name = line.name;
    spec.kind = line.kind;
    spec.flags = line.flags;
    spec.reader = reads;
    spec.writer = !reads;
    spec.cells = 16;
    spec.cell_size = 128;
    spec.spin = 1'000;
    auto opened = Queue::open(pool_, spec);
    expect_in_time("opening a queue");
    if (!opened) {
      judge("opening a queue", opened.error(), nullptr);
      return false;
    }
    into = std::move(*opened);
    return true;
  }

  void write(std::size_t i) {
    if (!open(writes_[i], false, out_[i])) return;
    Queue& queue = *out_[i];
    Result<void> sent;
    const std::int64_t wait = roll(3) == 0 ? kWait : kNoWait;
    const std::uint64_t content = dice_() >> 8;
    beat(30);
    switch (roll(6)) {
      case 0: {
        std::vector<std::byte> bytes(24 + 8 * roll(300));
        write_content(bytes, content);
        sent = queue.send(bytes, wait);
        break;
      }
      case 1:
      case 2: {
        beat(31);
        auto slot = pool_->acquire(24 + 8 * roll(200), wait);
        expect_in_time("acquire");
        if (!slot) return judge("acquire", slot.error(), nullptr);
        write_content({slot->data, slot->length}, content);
        beat(32);
        sent = queue.send(*slot, wait);
        if (auto released = pool_->release(*slot); !released) judge("release", released.error(), nullptr);
        break;
      }
      case 3:
        sent = send_list(queue, content, wait);
        break;
      default: {
        std::array<std::byte, 112> bytes;
        const std::span<std::byte> some = std::span(bytes).first(24 + 8 * roll(11));
        write_content(some, content);
        sent = queue.send(some, wait);
      }
    }
    expect_in_time("send");
    if (!sent) judge("send", sent.error(), &out_[i]);
  }

  Result<void> send_list(Queue& queue, std::uint64_t content, std::int64_t wait) {
    std::vector<std::byte> bytes(24 + 8 * roll(600));
    write_content(bytes, content);
    std::vector<OutPart> parts;
    OutPart part;
    part.data = bytes.data();
    part.length = bytes.size();
    for (std::uint64_t n = 1 + roll(5); n > 0; --n) parts.push_back(part);
    if (auto slot = pool_->acquire(256, kNoWait)) {
      write_content({slot->data, slot->length}, content);
      OutPart with;
      with.kind = PartKind::slot;
      with.slot = *slot;
      parts.push_back(with);
      add_region(parts, content);
      beat(33);
      auto sent = queue.send(parts, content, 0, wait);
      (void)pool_->release(*slot);
      return sent;
    }
    add_region(parts, content);
    beat(34);
    return queue.send(parts, content, 0, wait);
  }

  void add_region(std::vector<OutPart>& parts, std::uint64_t) {
    if (roll(4) != 0) return;
    if (!region_) {
      CreateItem item;
      item.length = 4096;
      item.group = place_.group;
      item.flags = SHMBW_CREATE_MANY_WRITERS;
      auto made = create_region(session_, item);
      if (!made) return judge("create", made.error(), nullptr);
      region_ = std::move(*made);
      write_content(region_->bytes().first(4096), 1);
    }
    OutPart part;
    part.kind = PartKind::region;
    part.region = region_.get();
    parts.push_back(part);
  }

  void read(std::size_t i) {
    if (!open(reads_[i], true, in_[i])) return;
    for (int n = 0; n < 4; ++n) {
      auto message = std::make_unique<Message>();
      const bool keep = roll(2) == 0;
      beat(40);
      auto got = in_[i]->receive(*message, keep, n == 0 && roll(4) == 0 ? kWait : kNoWait);
      expect_in_time("receive");
      if (!got) return judge("receive", got.error(), &in_[i]);
      me_.delivered.fetch_add(1, std::memory_order_relaxed);
      beat(41);
      look_at(*message);
      beat(42);
      if (keep && roll(2) == 0) kept_.push_back(std::move(message));
      else if (auto done = message->done(); !done) judge("done", done.error(), nullptr);
    }
  }

  void wait_for_all() {
    QueueSet set;
    for (auto& queue : in_)
      if (queue && !set.add(*queue, nullptr)) return;
    beat(50);
    const auto ready = set.wait(kWait);
    expect_in_time("waiting for several queues");
    if (!ready && ready.error().status != Status::invalid) judge("set", ready.error(), nullptr);
  }

  void look_at(const Message& message) {
    if (const std::string fault = stretch_fault(*pool_, message); !fault.empty()) shared_.fail(fault);
    if (place_.trusting) return;
    for (std::size_t i = 0; i < message.count(); ++i) {
      const Message::Part& part = message.part(i);
      std::uint64_t content = 0;
      if (part.status != Status::ok) fail("a part", part.failure);
      else if (const char* wrong = content_fault({part.data, part.length}, content)) shared_.fail(wrong);
    }
  }

  CrewShared& shared_;
  const CrewPlace& place_;
  const std::uint32_t number_;
  Progress& me_;
  std::mt19937_64 dice_;
  std::int64_t begun_ = 0;
  std::shared_ptr<Session> session_;
  std::shared_ptr<Pool> pool_;
  std::vector<Line> writes_, reads_;
  std::vector<std::unique_ptr<Queue>> out_, in_;
  std::vector<std::unique_ptr<Message>> kept_;
  Region::Handle region_;
};

}  // namespace

std::string stretch_fault(Pool& pool, const Message& message) {
  for (std::size_t i = 0; i < message.count(); ++i) {
    const Message::Part& part = message.part(i);
    if (part.status != Status::ok || part.length == 0) continue;
    if (part.kind == PartKind::slot) {
      const std::uint64_t size = pool.slot_size(part.slot);
      if (part.offset > size || part.length > size - part.offset || part.data != pool.data(part.slot) + part.offset)
        return "a part reaches beyond its slot";
    } else if (part.kind == PartKind::region && part.handle) {
      const std::uint64_t length = part.handle->facts().length;
      if (part.offset > length || part.length > length - part.offset) return "a part reaches beyond its region";
    }
    // Outside of what is mapped this is the end of the process.
    const std::span<const std::byte> bytes(part.data, part.length);
    unsigned sum = 0;
    for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
    sum_of_all.store(sum, std::memory_order_relaxed);
  }
  return "";
}

int serve(CrewShared& shared, const CrewPlace& place, std::uint32_t member, std::uint64_t seed) {
  return Member(shared, place, member, seed).run();
}

}  // namespace storm
