// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking: waiter masks in front of the sleep tokens, futex or doorbell, one sleeper on several queues,
// several sleepers on one queue whose wakers wake one, wakers that are killed or stopped for ever, the broker's wakes.
// With store buffers (TSO). A message here is a count that has gone up; waiting for room and for a free slot is the
// same protocol with other masks.
//
// Guarded: I9 of docs/pool-model.md: nobody sleeps while a message of a running, or a dead and repaired, writer waits.
#include <algorithm>
#include <utility>

#include "tests/model/instance.hpp"

namespace shmb::model {
namespace {

enum class Broken : std::uint8_t {
  none,
  V15,
  V16,
  V17_no_s4,
  V17_no_z3,
  V17_no_z4,
  V18,
  V19,
  mask_too_late,
  nobody_passes_on,
  same_lane_only,
  others_too_early,
  others_beside
};

struct Shape {
  std::uint8_t messages = 1, kills = 0, stops = 0, sleeps = 60;
  bool doorbell = false;
  bool busy = false;       // a consumer that has taken one may never look again; else it is writers that stop
  bool one_queue = false;  // consumers compete on one queue, else each writer has a queue and all readers see all
  // A broadcast's writer waits for room, and its readers wake it: what counts is the slowest of them, and only who was
  // the slowest wakes. Here the sleeper is the "reader", and a position the count of a "writer".
  bool slowest = false;
  Broken broken = Broken::none;
};

// Readers are the first indices, writers the others.
template <int R, int W>
class Wake {
 public:
  static constexpr int P = R + W, kBuffer = 2;
  enum Pc : std::uint8_t {
    kIdle,
    kZ0,
    kZ1,
    kZ2,
    kZ3,
    kZ4,
    kZ5,
    kAsleep,
    kZ7,
    kZ6,
    kFence,  // reader
    kS4,
    kMask,
    kOthers,
    kS5,
    kS6,
    kS7,
    kS8,  // waker: writers, and readers that pass on
    kKilled,
    kStopped,
    kGone
  };
  struct Participant {
    std::uint8_t pc, at;                     // at: which queue, or lane, in a loop over them
    std::uint8_t event, token;               // a sleeper's: what it read, its last token
    std::uint8_t queue, mask, target, seen;  // a waker's: whose bits are left, whom it wakes, the token it saw
    std::uint8_t sent;                       // a writer's messages; busy: a reader has taken one
    std::uint8_t buffered, buffer[kBuffer];  // a writer's publications; a reader's `sleep`
    std::uint8_t repair, repair_at;          // the broker: 1 dead; 2: wakes the others, 3 between S6 and S7
  };
  struct Wait {
    std::uint8_t sleep, event, bell;
  };
  struct State {
    Participant p[P];
    Wait wait[R];
    std::uint8_t masks[W];
    std::uint8_t published[W], taken[R][W];
    std::uint8_t kills, stops;
  };
  static constexpr auto kParts = parts_of<P, 0>(sizeof(Participant), 0, sizeof(State));

  explicit Wake(Shape shape) : shape_(shape) {}
  State first() const {
    State s{};
    s.kills = shape_.kills;
    s.stops = shape_.stops;
    return s;
  }

  void steps(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i) {
      if (s.p[i].buffered > 0) {
        State n = s;
        drain(n, i);
        emit(i, Step::drain, n);
      }
      repair(s, i, emit);
      const Participant& me = s.p[i];
      if (me.pc >= kKilled) continue;
      const auto outside = [&](Step step, Pc pc, std::uint8_t State::* budget) {
        if (s.*budget == 0) return;
        State n = s;
        --(n.*budget);
        n.p[i].pc = pc;
        if (step == Step::kill) n.p[i].repair = 1;
        emit(i, step, n);
      };
      outside(Step::kill, kKilled, &State::kills);
      if (shape_.busy ? i < R && me.pc == kIdle && me.sent > 0 : i >= R && me.pc != kIdle)
        outside(Step::stop, kStopped, &State::stops);
      if (me.pc >= kS4) {
        waker(s, i, emit);
      } else if (i < R) {
        reader(s, i, emit);
      } else {
        writer(s, i, emit);
      }
    }
  }
  const char* wrong(const State&) const { return nullptr; }
  const char* wrong_at_rest(const State& s) const {
    for (int r = 0; r < R; ++r) {
      if (s.p[r].pc >= kKilled) continue;
      if (s.p[r].pc != kAsleep) return "I9: a reader is stuck awake";
      if (shape_.slowest && any(s, r)) return "I9: somebody sleeps while there is room";
      for (int w = 0; w < W && !shape_.slowest; ++w)
        if (s.p[R + w].pc != kStopped && taken(s, r, w) < s.published[w])
          return "I9: somebody sleeps while a message waits";
    }
    for (int q = 0; q < W; ++q)
      for (int r = 0; r < R; ++r)
        if (s.p[r].pc == kGone && (s.masks[q] & 1 << r) != 0) return "I4: a bit of the dead is left in a waiter mask";
    return nullptr;
  }
  std::string show(const State& s) const {
    std::string text = "published";
    for (int w = 0; w < W; ++w) text += " " + std::to_string(s.published[w]);
    for (int r = 0; r < R; ++r)
      text += " | p" + std::to_string(r) + (s.p[r].pc == kAsleep ? " asleep" : "") + " sleep " +
              std::to_string(s.wait[r].sleep) + " event " + std::to_string(s.wait[r].event);
    text += " | masks";
    for (auto mask : s.masks) text += " " + std::to_string(mask);
    return text;
  }

 private:
  bool is(Broken variant) const { return shape_.broken == variant; }
  int queues() const { return shape_.one_queue || shape_.slowest ? 1 : W; }
  int taken(const State& s, int r, int w) const {
    return shape_.one_queue ? s.taken[0][w] : s.taken[r][shape_.slowest ? 0 : w];
  }
  // The dead hold nobody up, once that is known.
  int position(const State& s, int w) const { return s.p[R + w].pc == kGone ? shape_.messages : s.published[w]; }
  int slowest(const State& s) const {
    int least = shape_.messages;
    for (int w = 0; w < W; ++w) least = std::min(least, position(s, w));
    return least;
  }
  bool any(const State& s, int r) const {
    if (shape_.slowest) return taken(s, r, 0) < slowest(s);
    for (int w = 0; w < W; ++w)
      if (taken(s, r, w) < s.published[w]) return true;
    return false;
  }
  // Reader i has taken a message of writer w: are there more?
  bool passes_on(const State& s, int i, int w) const {
    if (is(Broken::nobody_passes_on)) return false;
    return is(Broken::same_lane_only) ? taken(s, i, w) < s.published[w] : any(s, i);
  }
  static void drain(State& n, int i) {
    Participant& me = n.p[i];
    (i < R ? n.wait[i].sleep : n.published[i - R]) = me.buffer[0];
    me.buffer[0] = me.buffer[1];
    me.buffer[1] = 0;
    --me.buffered;
  }
  template <class Change>
  void go(const State& s, int i, Step step, Emit<State>& emit, Change change) const {
    State n = s;
    change(n, n.p[i]);
    emit(i, step, n);
  }
  template <class Change>  // waits for its process's store buffer: read-modify-writes, fences, system calls
  void locked(const State& s, int i, Step step, Emit<State>& emit, Change change) const {
    if (s.p[i].buffered == 0) go(s, i, step, emit, change);
  }
  static void store(Participant& me, std::uint8_t value) { me.buffer[me.buffered++] = value; }

  void writer(const State& s, int i, Emit<State>& emit) const {
    if (s.p[i].sent == shape_.messages || s.p[i].buffered == kBuffer) return;
    go(s, i, Step::S2, emit, [&](State&, Participant& me) {
      store(me, ++me.sent);
      me.queue = static_cast<std::uint8_t>(queues() == 1 ? 0 : i - R);
      me.pc = is(Broken::V17_no_s4) ? kMask : is(Broken::others_too_early) ? kOthers : kS4;
    });
  }

  // S4 to S8, after a publication of the queue; a consumer that passes on runs them, too.
  void waker(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const auto on = [](Participant& me) {
      me.target = me.seen = 0;
      if (me.mask != 0) {
        me.pc = kS5;
      } else {
        me.queue = 0;
        me.pc = kIdle;
      }
    };
    const bool early = is(Broken::V15) || is(Broken::V16);  // takes the flag away, then wakes
    switch (now.pc) {
      case kS4:
        return locked(s, i, Step::S4, emit, [&](State&, Participant& me) { me.pc = kMask; });
      case kMask:
        return go(s, i, Step::S4, emit, [&](State&, Participant& me) {
          me.mask = s.masks[now.queue];
          if (shape_.slowest && me.mask != 0 && !is(Broken::others_too_early)) me.pc = kOthers;
          else on(me);
        });
      case kOthers: {  // two readers: one look
        const int mine = is(Broken::others_beside) ? now.sent : now.sent - 1;
        bool was_slowest = true;
        for (int w = 0; w < W; ++w)
          if (R + w != i && s.p[R + w].pc != kGone && s.published[w] <= mine) was_slowest = false;
        return go(s, i, Step::Q5, emit, [&](State&, Participant& me) {
          if (was_slowest && is(Broken::others_too_early)) me.pc = kS4;
          else {
            if (!was_slowest) me.mask = 0;
            on(me);
          }
        });
      }
      case kS5:
        for (std::uint8_t r = 0; r < R; ++r) {  // in any order: the waker rotates
          if ((now.mask & 1 << r) == 0) continue;
          go(s, i, Step::S5, emit, [&](State&, Participant& me) {
            me.mask &= static_cast<std::uint8_t>(~(1 << r));
            if (s.wait[r].sleep == 0) return on(me);
            me.target = r;
            me.seen = s.wait[r].sleep;
            me.pc = early ? kS8 : kS6;
          });
        }
        return;
      case kS6:
        return locked(s, i, Step::S6, emit, [&](State& n, Participant& me) {
          ++n.wait[now.target].event;
          me.pc = kS7;
        });
      case kS7:
        return locked(s, i, Step::S7, emit, [&](State& n, Participant& me) {
          wake(n, now.target);
          if (shape_.one_queue) me.mask = 0;
          if (early) on(me);
          else me.pc = kS8;
        });
      case kS8:
        return locked(s, i, Step::S8, emit, [&](State& n, Participant& me) {
          if (n.wait[now.target].sleep == now.seen) n.wait[now.target].sleep = 0;
          if (early) me.pc = kS6;
          else on(me);
        });
      default:
        return;
    }
  }
  void wake(State& n, int r) const {
    if (shape_.doorbell) n.wait[r].bell = 1;
    if (n.p[r].pc == kAsleep) n.p[r].pc = kZ7;
  }

  void reader(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const bool last_queue = now.at + 1 == queues();
    const auto next_queue = [&](Participant& me, Pc after) {
      me.at = static_cast<std::uint8_t>(last_queue ? 0 : me.at + 1);
      if (last_queue) me.pc = after;
    };
    switch (now.pc) {
      case kIdle: {
        for (int w = 0; w < (shape_.slowest ? 1 : W); ++w) {
          if (taken(s, i, w) >= (shape_.slowest ? slowest(s) : s.published[w])) continue;
          locked(s, i, Step::R4, emit, [&](State& n, Participant& me) {
            if (shape_.busy) me.sent = 1;
            ++n.taken[shape_.one_queue ? 0 : i][w];
            if (shape_.one_queue && passes_on(n, i, w)) me.pc = kS4;
          });
        }
        if (any(s, i) || now.token == shape_.sleeps) return;
        if (is(Broken::mask_too_late)) return go(s, i, Step::R1, emit, [&](State&, Participant& me) { me.pc = kZ1; });
        return go(s, i, Step::R1, emit, [&](State&, Participant& me) {
          me.sent = 0;
          me.pc = kZ0;
        });
      }
      case kZ0:
        return locked(s, i, Step::Z0, emit, [&](State& n, Participant& me) {
          n.masks[now.at] |= static_cast<std::uint8_t>(1 << i);
          next_queue(me, is(Broken::mask_too_late) ? kZ5 : kZ1);
        });
      case kZ1:
        return go(s, i, Step::Z1, emit, [&](State&, Participant& me) {
          me.event = s.wait[i].event;
          me.pc = kZ2;
        });
      case kZ2:
        if (now.buffered == kBuffer) return;
        return go(s, i, Step::Z2, emit, [&](State&, Participant& me) {
          me.token = is(Broken::V19) ? 1 : static_cast<std::uint8_t>(me.token + 1);
          store(me, me.token);
          me.pc = is(Broken::V17_no_z3) ? kZ4 : kZ3;
        });
      case kZ3:
        return locked(s, i, Step::Z3, emit,
                      [&](State&, Participant& me) { me.pc = is(Broken::V17_no_z4) ? kZ5 : kZ4; });
      case kZ4:  // one lane after another
        return go(s, i, Step::Z4, emit, [&](State&, Participant& me) {
          bool something = taken(s, i, now.at) < (shape_.slowest ? position(s, now.at) : s.published[now.at]);
          bool last = now.at + 1 == W;
          if (shape_.slowest && !std::exchange(something, something && last)) last = true;  // one that holds it up
          me.at = static_cast<std::uint8_t>(something || last ? 0 : now.at + 1);
          if (something) me.pc = kZ7;
          else if (last) me.pc = is(Broken::mask_too_late) ? kZ0 : kZ5;
        });
      case kZ5: {
        const auto sleep = [&](State& n, Participant& me) {
          bool asleep = n.wait[i].event == me.event;
          if (is(Broken::V16)) asleep = n.wait[i].sleep == me.token;
          if (shape_.doorbell) asleep = n.wait[i].bell == 0;
          me.pc = asleep ? kAsleep : kZ7;
          me.event = 0;
        };
        // A system call is no fence by itself; without Z3 the store may be in its buffer still.
        return go(s, i, Step::Z5, emit, sleep);
      }
      case kZ7:
        return locked(s, i, Step::Z7, emit, [&](State& n, Participant& me) {
          n.wait[i].bell = 0;
          n.masks[now.at] &= static_cast<std::uint8_t>(~(1 << i));
          next_queue(me, kZ6);
        });
      case kZ6:
        return go(s, i, Step::Z6, emit, [&](State&, Participant& me) {
          store(me, 0);
          me.pc = kFence;
        });
      case kFence:
        return locked(s, i, Step::Z6, emit, [&](State&, Participant& me) { me.pc = kIdle; });
      default:
        return;
    }
  }

  void repair(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const auto step = [&](Step name, auto change) {
      State n = s;
      change(n, n.p[i]);
      emit(-1, name, n);
    };
    if (now.repair == 1 && now.buffered == 0)
      return step(Step::D1, [&](State& n, Participant& me) {
        if (i < R) {
          for (auto& mask : n.masks) mask &= static_cast<std::uint8_t>(~(1 << i));
          n.wait[i].sleep = 0;
        }
        me = Participant{};
        me.pc = kGone;
        me.repair = is(Broken::V18) ? 0 : 2;
      });
    if (now.repair < 2) return;
    return step(Step::D5, [&](State& n, Participant& me) {
      const int r = now.repair_at;
      if (now.repair == 2) {
        if (s.p[r].pc < kKilled) ++n.wait[r].event;
        me.repair = 3;
        return;
      }
      if (s.p[r].pc < kKilled) wake(n, r);
      me.repair = ++me.repair_at == R ? 0 : 2;
      if (me.repair == 0) me.repair_at = 0;
    });
  }

  Shape shape_;
};

template <int R, int W>
void add(std::vector<Instance>& all, std::string variant, std::string name, Shape shape, bool liveness = true,
         bool large = false) {
  all.push_back(instance(std::move(variant), std::move(name), Wake<R, W>(shape), liveness, large));
}

}  // namespace

void add_wakes(std::vector<Instance>& all) {
  add<1, 2>(all, "", "wake, TSO: a sleeper on 2 queues, futex, 1 kill", {.kills = 1});
  add<1, 2>(all, "", "wake, TSO: a sleeper on 2 queues, futex, 1 kill, 1 writer stopped", {.kills = 1, .stops = 1});
  add<1, 2>(all, "", "wake, TSO: a sleeper on 2 queues, doorbell, 1 kill, 1 writer stopped",
            {.kills = 1, .stops = 1, .doorbell = true});
  add<1, 1>(all, "", "wake, TSO: a sleeper, 3 messages of a writer, futex, 1 kill", {.messages = 3, .kills = 1});
  add<2, 1>(all, "", "wake, TSO: 2 sleepers, all are woken, futex, 1 kill", {.kills = 1});
  add<2, 2>(all, "", "wake, TSO: 2 sleepers on an mpmc queue, one is woken, futex, nobody dies", {.one_queue = true},
            true, true);
  add<2, 1>(all, "", "wake, TSO: 2 sleepers on an mpmc queue, 2 messages, one is woken, futex, 1 kill",
            {.messages = 2, .kills = 1, .one_queue = true});
  add<2, 1>(all, "", "wake, TSO: 2 sleepers on an mpmc queue, 2 messages, one consumer takes one and is busy for ever",
            {.messages = 2, .stops = 1, .busy = true, .one_queue = true});
  add<2, 2>(all, "", "wake, TSO: 2 sleepers on an mpmc queue, 2 writers, one consumer takes one and is busy for ever",
            {.stops = 1, .busy = true, .one_queue = true}, true, true);
  add<1, 2>(all, "", "wake, TSO: a sleeper on 2 queues, 2 messages each, futex, 2 kills", {.messages = 2, .kills = 2},
            true, true);
  add<1, 2>(all, "", "wake, TSO: a sleeper on 2 queues, 2 messages each, futex, 1 kill, 1 stopped",
            {.messages = 2, .kills = 1, .stops = 1}, true, true);
  add<1, 2>(all, "", "wake, TSO: a sleeper on 2 queues, 2 messages each, doorbell, 1 kill, 1 stopped",
            {.messages = 2, .kills = 1, .stops = 1, .doorbell = true}, true, true);
  add<2, 2>(all, "", "wake, TSO: 2 sleepers on an mpmc queue, 2 writers, one is woken, futex, 1 kill",
            {.kills = 1, .one_queue = true}, true, true);

  add<1, 2>(all, "", "wake, TSO: room in a ring of 2 readers, the slowest wakes, futex, 1 kill",
            {.messages = 2, .kills = 1, .slowest = true});
  add<1, 2>(all, "", "wake, TSO: room in a ring of 2 readers, 3 messages, the slowest wakes, doorbell, 2 kills",
            {.messages = 3, .kills = 2, .doorbell = true, .slowest = true}, true, true);

  const std::string name = "wake, TSO";
  add<1, 2>(all, "V15", name, {.stops = 1, .broken = Broken::V15});
  add<1, 2>(all, "V16", name, {.stops = 1, .broken = Broken::V16});
  add<1, 1>(all, "V17", name + ": no fence S4", {.broken = Broken::V17_no_s4});
  add<1, 1>(all, "V17", name + ": no fence Z3", {.broken = Broken::V17_no_z3});
  add<1, 1>(all, "V17", name + ": no second look Z4", {.broken = Broken::V17_no_z4});
  add<1, 1>(all, "V18", name, {.kills = 1, .broken = Broken::V18});
  add<1, 2>(all, "V19", name, {.messages = 2, .stops = 0, .broken = Broken::V19});
  add<1, 1>(all, "M6", name + ": the bit in the waiter mask is set after the last look",
            {.broken = Broken::mask_too_late});
  add<1, 2>(all, "M14", name + ": a ring's reader looks at the others before its position is visible",
            {.slowest = true, .broken = Broken::others_too_early});
  add<1, 2>(all, "M15", name + ": a ring's reader leaves the wake to who stands beside it",
            {.slowest = true, .broken = Broken::others_beside});
  add<2, 2>(all, "M7", name + ": mpmc queue, a consumer does not pass on what it leaves",
            {.stops = 1, .busy = true, .one_queue = true, .broken = Broken::nobody_passes_on});
  add<2, 2>(all, "M8", name + ": mpmc queue, a consumer passes on only what is in the lane it took from",
            {.stops = 1, .busy = true, .one_queue = true, .broken = Broken::same_lane_only});
}
}  // namespace shmb::model
