// SPDX-License-Identifier: Apache-2.0
// See stage.hpp.
#include "tests/kill/stage.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/harness/sanitizer.hpp"
#include "tests/harness/stopped.hpp"
#include "tests/support/arguments.hpp"

namespace kill_tests {

using pool::CellState;
using pool::CellWord;
using pool::LaneState;
using pool::ParticipantState;
using pool::Stamp;

bool all_points() {
  static const bool all = support::has_argument("--all");
  return all;
}
bool only_some() {
  return std::ranges::any_of(support::arguments(), [](const std::string& word) { return word != "--all"; });
}

const char* name_of(Way way) {
  switch (way) {
    case Way::dies:
      return "dies";
    case Way::stopped:
      return "stopped first";
    case Way::broker_stopped:
      return "the broker is stopped meanwhile";
    default:
      return "a newcomer takes its place";
  }
}

Reached& reached() {
  static Reached all;
  return all;
}
void note(const Actor& actor, bool died) {
  Reached& all = reached();
  for (unsigned i = 0; i < kSteps; ++i) all.passed[i] += actor.count[i];
  if (!died) return;
  ++all.deaths;
  if (actor.target != 0 && actor.target <= kMostTraced) ++all.killed[actor.trace[actor.target - 1]];
}

Stage::Stage(QueueSpec of, std::uint32_t slots) : queue(std::move(of)) {
  ann_session = open(broker);
  ann = must(make_pool(ann_session, slots_of("p", kSlot, slots)));
  bob_session = beside(broker, ann);
  bob = must(try_pool(bob_session, "p"));
  admin = open_admin(broker);
  (void)must(Queue::open(ann, reads()));  // so that it exists in every case
  side_in_ = must(Queue::open(ann, queue_spec("side", Kind::spsc, true, false, 16)));
  side_out_ = must(Queue::open(bob, queue_spec("side", Kind::spsc, false, true, 16)));
}
Stage::~Stage() {
  in.reset();
  out.reset();
  side_in_.reset();
  side_out_.reset();
}

QueueSpec Stage::role(bool reader, bool writer) const {
  QueueSpec spec = queue;
  spec.reader = reader;
  spec.writer = writer;
  return spec;
}

// By the clock and by looks: beside other work, at the lowest priority, 20 s of the clock may be few ms of a processor.
bool Stage::eventually(const std::function<bool()>& holds) const {
  constexpr unsigned kLooks = 2000;
  const Deadline patience = Deadline::after(20'000'000'000);
  for (unsigned looks = 0; looks < kLooks || !patience.passed(); ++looks) {
    if (holds()) return true;
    ::usleep(100);
  }
  return false;
}

Taken Stage::take_all(Queue& from, std::size_t most) {
  Taken taken;
  Message message;
  while (taken.ids.size() < most) {
    // Every second one is kept, so that R3 and P1 have their turn.
    auto received = from.receive(message, taken.ids.size() % 2 == 1, kNoWait);
    if (received) {
      const std::uint64_t id = id_of(message);
      if (id == kTorn) ++taken.torn;
      taken.ids.push_back(id);
      must(message.done());
      continue;
    }
    if (received.error().status == Status::peer_gone) {
      ++taken.gone;
      continue;
    }
    if (received.error().status != Status::empty) FAIL_CHECK("a survivor's receive: " << received.error().sentence);
    break;
  }
  return taken;
}

Taken Stage::take_expected(Queue& from, std::size_t count) {
  Taken all;
  (void)eventually([&] {
    const Taken some = take_all(from);
    all.ids.insert(all.ids.end(), some.ids.begin(), some.ids.end());
    all.torn += some.torn;
    all.gone += some.gone;
    return all.ids.size() >= count;
  });
  return all;
}

void Stage::send_some(Queue& to, std::uint64_t first, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    auto slot = i % 2 == 1 ? bob->acquire(kSlot, kNoWait) : error(Status::full, "");
    if (!slot) {  // or the victim has them all
      std::array<std::byte, kInline> body;
      fill(body, first + i);
      auto sent = to.send(body, kNoWait);
      if (!sent && sent.error().status == Status::peer_gone) sent = to.send(body, kNoWait);  // of a trial before
      must(std::move(sent));
      continue;
    }
    fill({slot->data, slot->length}, first + i);
    must(to.send(*slot, kNoWait));
    must(bob->release(*slot));
  }
}

namespace {

// In portions that fit; each is checked.
void pass(Stage& stage, Queue& from, std::initializer_list<Queue*> to, unsigned count, unsigned portion,
          std::uint64_t& sequence) {
  for (unsigned done = 0; done < count;) {
    const unsigned now = std::min({count - done, 1 + done % portion});
    const std::uint64_t first = stage.id(200, 0) | (sequence & 0x3fff);
    sequence += now;
    stage.send_some(from, first, now);
    for (Queue* reader : to) {
      if (reader == nullptr) continue;
      const Taken taken = stage.take_all(*reader, now);
      REQUIRE(taken.ids.size() == now);
      for (unsigned i = 0; i < now; ++i) REQUIRE(taken.ids[i] == first + i);
    }
    done += now;
  }
}

}  // namespace

void Stage::exchange(unsigned count) {
  std::unique_ptr<Queue> reader, writer;
  if (!in) reader = must(Queue::open(ann, reads()));
  if (!out) writer = must(Queue::open(bob, writes()));
  Queue& to = in ? *in : *reader;
  // News of the dead come first.
  const auto take_news = [&] {
    (void)take_all(to);
    if (also_reads != nullptr) (void)take_all(*also_reads);
  };
  take_news();
  Queue& from = out ? *out : *writer;
  pass(*this, from, {&to, also_reads}, count, std::min(queue.cells, 8U), sequence_);
  writer.reset();
  take_news();
  reader.reset();
}

void Stage::exchange_beside(unsigned count) { pass(*this, *side_out_, {side_in_.get()}, count, 8, sequence_); }

void Stage::use_all_free_slots() {
  std::vector<Slot> slots;
  while (auto slot = bob->acquire(kSlot, kNoWait)) {
    fill({slot->data, slot->size}, kTorn - 1);
    slots.push_back(*slot);
  }
  for (const Slot& slot : slots) must(bob->release(slot));
}

void Stage::newcomer() {
  auto session = beside(broker, ann);
  auto pool = must(try_pool(session, "p"));
  {
    auto queue_of_its_own = must(Queue::open(pool, queue_spec("side2", Kind::mpmc, true, true, 2)));
    std::array<std::byte, kInline> body;
    fill(body, 5);
    for (int i = 0; i < 5; ++i) {
      must(queue_of_its_own->send(body, kNoWait));
      Message message;
      must(queue_of_its_own->receive(message, true, kNoWait));
      CHECK(id_of(message) == 5);
    }
    auto slot = must(pool->acquire(kSlot, kNoWait));
    fill({slot.data, slot.size}, kTorn - 2);
    must(pool->release(slot));
    must(queue_of_its_own->close(true, true));
  }
}

void Stage::settle_survivors() {
  for (Queue* one : {in.get(), also_reads, out.get(), side_in_.get(), side_out_.get()})
    if (one != nullptr) (void)must(one->facts());
  for (const auto& pool : {ann, bob}) {
    (void)must(pool->facts());
    Pool::Lock lock(pool->me().lock());
    pool->me().reclaim();
    pool->me().flush_cache();
  }
}

std::string Stage::state() {
  std::ostringstream text;
  const pool::View& view = ann->view();
  settle_survivors();
  for (std::uint32_t i = 0; i < pool::kParticipants; ++i) {
    const Stamp stamp = Stamp::of(view.participant(i).stamp.load());
    if (stamp.state != 0 || (live >> i & 1) != 0) text << "participant " << i << " state " << int{stamp.state} << "\n";
    if ((live >> i & 1) != 0) continue;
    if (view.wait(i).sleep.load() != 0) text << "participant " << i << " sleeps\n";
  }
  auto strangers = [&](const char* what, std::uint64_t mask) {
    if ((mask & ~live) != 0) text << what << " has the bits " << std::hex << mask << std::dec << "\n";
  };
  strangers("slot_waiters", view.control().slot_waiters.mask.load());
  for (std::uint32_t i = 0; i < view.slots(); ++i)
    if (const std::uint64_t holders = view.slot(i).holders.load(); holders != 0)
      text << "slot " << i << " is held by " << std::hex << holders << std::dec << "\n";
  for (std::uint32_t i = 0; i < view.queues(); ++i) {
    const pool::QueueEntry& entry = view.queue(i);
    strangers("a queue's readers that sleep", view.queue_waiters(i).readers.mask.load());
    strangers("a queue's writers that sleep", view.queue_waiters(i).writers.mask.load());
    if (Stamp::of(entry.stamp.load()).state == 0) continue;
    text << "queue " << std::string(entry.name, entry.name_length) << " readers " << entry.readers.load() << " writers "
         << entry.writers.load() << "\n";
  }
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::LaneEntry& lane = view.lane(i);
    const Stamp stamp = Stamp::of(lane.stamp.load());
    if (stamp.state == 0) continue;
    const auto kind = static_cast<Kind>(view.queue(lane.queue).kind);
    text << "a lane of queue " << lane.queue << " from " << lane.from << " state " << int{stamp.state} << "\n";
    const pool::LaneView words(view.lane_memory(lane.offset), kind, lane.cells, lane.cell_size);
    for (std::uint32_t who = 0; kind == Kind::broadcast && who < pool::kParticipants; ++who)
      if (words.reader(who).position.load() != 0 && (live >> who & 1) == 0)
        text << "participant " << who << " has a place in a ring\n";
    for (std::uint32_t cell = 0; kind == Kind::mpmc && cell < lane.cells; ++cell)
      if (CellWord::of(words.cell(cell).word.load()).claimed()) text << "a cell is claimed\n";
  }
  Selection here;
  here.region.id = ann->id();
  for (const PoolRow& row : must(list_pools(*admin, here, Deadline::after(0))).rows)
    text << "LIST: pool " << row.name << " slots " << row.record.slots << " used " << row.record.slots_used
         << " participants " << row.record.participants << " leaving " << row.record.leaving << " queues "
         << row.record.queues << " lanes " << row.record.lanes << "\n";
  for (const QueueRow& row : must(list_queues(*admin, here, Deadline::after(0))).rows)
    text << "LIST: queue " << row.name << " readers " << row.record.readers << " writers " << row.record.writers
         << " lanes " << row.record.lanes << " depth " << row.record.depth << " lag " << row.record.lag << "\n";
  for (const ParticipantRow& row : must(list_participants(*admin, here, Deadline::after(0))).rows)
    text << "LIST: participant " << row.record.participant << " state " << row.record.state << " holds "
         << row.record.slots_held << " reads " << row.record.reading << " writes " << row.record.writing << " unread "
         << row.record.unread << "\n";
  const auto status = must(broker_status(*admin, Deadline::after(0))).record;
  text << "STATUS: regions " << status.regions << " bytes " << status.bytes << " leases " << status.leases
       << " sessions " << status.sessions << " groups " << status.groups << " tickets " << status.tickets << "\n";
  return text.str();
}

void Stage::take_rest() {
  live = 0;
  const pool::View& view = ann->view();
  for (std::uint32_t i = 0; i < pool::kParticipants; ++i)
    if (Stamp::of(view.participant(i).stamp.load()).state == static_cast<std::uint8_t>(ParticipantState::live))
      live |= std::uint64_t{1} << i;
  rest_ = state();
  sessions_ = must(list_sessions(*admin, {}, Deadline::after(0))).rows.size();
}

void Stage::expect_rest() {
  std::string now;
  const bool same = eventually([&] { return (now = state()) == rest_; });
  if (same) return;
  FAIL("not as before.\n--- now:\n" << now << "--- before:\n" << rest_ << "--- log:\n" << broker.log());
}

void Stage::expect_gone() {
  const pool::View& view = ann->view();
  const bool gone = eventually([&] {
    for (std::uint32_t i = 0; i < pool::kParticipants; ++i) {
      const Stamp stamp = Stamp::of(view.participant(i).stamp.load());
      const bool lives = stamp.state == static_cast<std::uint8_t>(ParticipantState::live) ||
                         stamp.state == static_cast<std::uint8_t>(ParticipantState::joining);
      if (lives && (live >> i & 1) == 0) return false;
    }
    return must(list_sessions(*admin, {}, Deadline::after(0))).rows.size() == sessions_;
  });
  if (!gone) FAIL("a death was not noticed; log:\n" << broker.log());
}

namespace {

// Slots that unread messages of a participant's life name. In a ring, those that some reader has not passed must be
// held, and all that stand in it may be.
struct Needed {
  std::set<std::uint32_t> must, may;
};
// nullopt: a list is among them, which keeps everything.
std::optional<Needed> needed(const pool::View& view, std::uint32_t index, std::uint32_t life) {
  Needed slots;
  for (std::uint32_t i = 0; i < view.lanes(); ++i) {
    const pool::LaneEntry& lane = view.lane(i);
    const Stamp stamp = Stamp::of(lane.stamp.load());
    if (stamp.state == 0 || lane.from != index || lane.from_life != life) continue;
    const pool::QueueEntry& queue = view.queue(lane.queue);
    const auto kind = static_cast<Kind>(queue.kind);
    const pool::LaneView words(view.lane_memory(lane.offset), kind, lane.cells, lane.cell_size);
    if (kind == Kind::spsc && Stamp::of(view.participant(lane.to).stamp.load()) !=
                                  Stamp{lane.to_life, static_cast<std::uint8_t>(ParticipantState::live)})
      continue;
    std::uint64_t slowest = UINT64_MAX;  // what it reads next
    for (std::uint32_t who = 0; kind == Kind::broadcast && who < pool::kParticipants; ++who)
      if (const std::uint64_t at = words.reader(who).position.load(); at != 0) slowest = std::min(slowest, at - 1);
    if (kind == Kind::broadcast && slowest == UINT64_MAX) continue;
    const std::uint64_t head = kind == Kind::spsc ? words.head().load() : 0;
    for (std::uint32_t n = 0; n < lane.cells; ++n) {
      pool::Cell& cell = words.cell(head + n);
      const CellWord word = CellWord::of(cell.word.load());
      if (kind == Kind::spsc && (!word.is(CellState::full) || word.position != head + n)) break;
      if (!word.is(CellState::full) && !(kind == Kind::mpmc && word.claimed())) continue;
      if (word.tag != pool::kTagSlot && word.tag > pool::kTagMaxInline) return std::nullopt;
      if (word.tag != pool::kTagSlot) continue;
      pool::Handle handle;
      std::memcpy(&handle, cell.body() + ((queue.flags & pool::kQueueExpiring) != 0 ? 8 : 0), sizeof handle);
      slots.may.insert(handle.slot);
      if (kind != Kind::broadcast || word.position >= slowest) slots.must.insert(handle.slot);
    }
  }
  return slots;
}

}  // namespace

void Stage::expect_bits(const Actor& actor) {
  if (actor.index == pool::kNone) return;
  const pool::View& view = ann->view();
  std::set<std::uint32_t> held;
  std::optional<Needed> due;
  const bool exact = eventually([&] {
    due = needed(view, actor.index, actor.life);
    if (!due) return true;
    held.clear();
    for (std::uint32_t i = 0; i < view.slots(); ++i)
      if ((view.slot(i).holders.load() >> actor.index & 1) != 0) held.insert(i);
    return std::ranges::includes(due->may, held) && std::ranges::includes(held, due->must);
  });
  if (!exact) FAIL("the dead holds " << held.size() << " slots, its unread messages need " << due->must.size());
}

End serve(Stage& stage, Actor& actor, Child& child, const std::function<void(Stage&, std::uint32_t)>& on_ask) {
  for (;;) {
    if (const std::uint32_t number = actor.asked; number != actor.answered) {
      if (on_ask) on_ask(stage, number);
      actor.answered = number;
    }
    if (child.wait_ended(0)) return End::ended;
    siginfo_t info{};
    if (actor.stops && ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WSTOPPED | WNOHANG) == 0 &&
        info.si_pid == child.pid())
      return End::stopped;
    ::usleep(20);
  }
}

namespace {

struct Trial {
  std::uint64_t point = 0;
  Way way = Way::dies;
};

// True: it died, else it came to its end.
bool run_one(Stage& stage, const Operation& operation, const SharedActor& actor, Trial trial) {
  actor.clear();
  ++stage.trial;
  actor->target = trial.point;
  actor->stops = trial.way == Way::stopped || trial.way == Way::broker_stopped;
  if (operation.before) operation.before(stage);
  const std::string socket = stage.broker.socket();
  const std::uint64_t group = stage.ann->group();
  Child child = Child::run([&] {
    Self self(*actor, socket, group);
    self.join();
    operation.body(self);
    return 0;
  });
  if (serve(stage, *actor, child, operation.on_ask) == End::stopped) {
    if (trial.way == Way::broker_stopped) harness::stop(stage.broker.pid());
    else stage.exchange_beside(50);
    child.kill();
    (void)child.wait();
    if (trial.way == Way::broker_stopped) {
      stage.exchange_beside(50);
      ::kill(stage.broker.pid(), SIGCONT);
    }
  }
  const int status = child.wait();
  const bool died = status == 128 + SIGKILL;
  if (!died) REQUIRE(status == 0);
  note(*actor, died);
  if (operation.clear) operation.clear();
  stage.expect_gone();
  stage.expect_bits(*actor);
  if (trial.way == Way::newcomer) stage.newcomer();
  stage.use_all_free_slots();
  if (operation.after) operation.after(stage, *actor, died);
  stage.expect_rest();
  if (operation.exchanges) stage.exchange(1000 / harness::kSlowdown);
  return died;
}

std::vector<Trial> choose(const std::vector<std::uint16_t>& trace) {
  std::vector<Trial> trials;
  if (all_points()) {
    for (std::uint64_t point = 1; point <= trace.size(); ++point)
      for (unsigned way = 0; way < kWays; ++way) trials.push_back({point, static_cast<Way>(way)});
    return trials;
  }
  // The first time and the last time that each step is passed.
  for (std::uint64_t point = 1; point <= trace.size(); ++point) {
    const auto at = trace.begin() + static_cast<std::ptrdiff_t>(point - 1);
    const bool first = std::find(trace.begin(), at, *at) == at,
               last = std::find(at + 1, trace.end(), *at) == trace.end();
    if (first || last) trials.push_back({point, static_cast<Way>(trials.size() % kWays)});
  }
  std::vector<Trial> some;
  for (std::size_t i = 0; i < trials.size(); i += harness::kSlowdown) some.push_back(trials[i]);
  return some;
}

}  // namespace

void cut_short(Stage& stage, const Operation& operation) {
  const std::string what = operation.name;
  CAPTURE(what);
  stage.take_rest();
  const SharedActor actor;
  // Once to its end: what steps there are.
  REQUIRE(!run_one(stage, operation, actor, {}));
  const std::uint64_t length = std::min(actor->passed.load(), kMostTraced);
  const std::vector<std::uint16_t> trace(actor->trace.begin(),
                                         actor->trace.begin() + static_cast<std::ptrdiff_t>(length));
  REQUIRE(!trace.empty());
  reached().points += trace.size();
  ++reached().operations;
  unsigned deaths = 0;
  const std::vector<Trial> trials = choose(trace);
  for (const Trial& trial : trials) {
    const std::string step = name_of(trace[trial.point - 1]);
    const std::string way = name_of(trial.way);
    CAPTURE(trial.point);
    CAPTURE(step);
    CAPTURE(way);
    deaths += run_one(stage, operation, actor, trial) ? 1U : 0U;
  }
  // Steps that depend on timing (a sleeper's) are fewer at times; half of the points must have been met.
  CHECK(deaths * 2 >= trials.size());
  stage.expect_rest();
}

void Arrived::take(Stage& stage, std::size_t most) {
  const Taken taken = stage.take_all(*stage.in, most);
  CHECK(taken.torn == 0);
  ids.insert(ids.end(), taken.ids.begin(), taken.ids.end());
}

void Arrived::check(Stage& stage, const Actor& actor) {
  take(stage);
  REQUIRE(ids.size() == actor.published());
  CHECK(actor.published() >= actor.confirmed);
  for (std::size_t i = 0; i < ids.size(); ++i) CHECK(ids[i] == stage.id(1, i));
  ids.clear();
}

}  // namespace kill_tests
