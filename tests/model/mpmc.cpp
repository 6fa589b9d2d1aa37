// SPDX-License-Identifier: Apache-2.0
// A queue whose consumers compete: one mpmc lane per life of a producer, cells {state, position}, claims by CAS,
// claims of the dead given back (D2), claims given back by the living (C7), messages that expire, taken back by their
// sender (KX) or, for a dead one, by the broker (in D3), lanes recycled once every consumer is through with them.
// Sequentially consistent. Each message goes to slot memory; a sent slot is the cell's alone until the cell is done.
//
// Guarded: I1 to I5 of docs/pool-model.md; exactly once here means: every published message was either completed by one
// consumer or expired once, never both.
#include <algorithm>

#include "tests/model/instance.hpp"

namespace shmb::model {
namespace {

enum class Broken : std::uint8_t {
  none,
  V20,
  V21,
  V22,
  V23,
  V24,
  through_too_early,
  recycled_unasked,
  shown_when_claimed,  // the application reads in place, and its cell is done afterwards
  shown_with_bit,      // it has the slot before its cell is done
  taken_twice          // it takes a slot of a message again after it has given that back
};

struct Shape {
  std::uint8_t lives = 1;  // of producers; consumers have consumer_lives
  std::uint8_t consumer_lives = 1, kills = 0;
  std::uint8_t messages = 2;   // per life of a producer
  bool at_least_once = false;  // the application has a message before its cell is done
  bool keeps = true;           // at least once: it may take the slot out of the message
  bool gives_back = false;     // C7
  bool expiring = false;       // a deadline may have passed at any moment
  bool sweep_first = false;    // D4 before D2
  Broken broken = Broken::none;
};

// Producers are the first indices, consumers the others.
template <int Producers, int Consumers, int S, int L, int C>
class MpmcLane {
 public:
  static constexpr int P = Producers + Consumers, kMost = 3;
  enum Pc : std::uint8_t {
    kNobody,
    kIdle,
    kA2,
    kA3,
    kA4,
    kK2,
    kK3,
    kC1,
    kC2,
    kC3,
    kC4,
    kC5,
    kR3,
    kC6,
    kLate,
    kAgain,
    kL2,
    kKilled
  };
  enum Life : std::uint8_t { kFree, kLive, kDead };
  enum Repair : std::uint8_t { kNone, kD1, kD2, kD3, kD4, kD5, kD6, kWaiting };
  enum Word : std::uint8_t { kEmpty, kFull, kBusy, kClaimedBy };

  struct Cell {
    std::uint8_t position, state;  // the word
    std::uint8_t slot, generation;
  };
  struct Lane {
    std::uint8_t open, from, from_life;
    std::uint8_t through;  // consumers that are, a bit each
    std::uint8_t head;
    Cell cells[C];
    std::uint8_t tail, flying;  // the sender's memory; flying: cells it has not yet seen done, a bit each
    std::uint8_t sent[C];
    std::uint8_t taken[kMost];  // truth: how often message k was completed or expired
    std::uint8_t shown[kMost];  // and to how many applications it went, but for at least once
  };
  struct Participant {
    std::uint8_t life, state;
    std::uint8_t pc, lane, head, position, slot, generation, keeps;
    std::uint8_t local[S], held[S];
    std::uint8_t repair, again, repair_at, keep;
  };
  struct Slot {
    std::uint8_t holders, generation;
  };
  struct State {
    Participant p[P];
    Lane lanes[L];
    Slot slots[S];
    std::uint8_t kills;
  };
  static constexpr auto kParts = parts_of<P, L>(sizeof(Participant), sizeof(Lane), sizeof(State));

  explicit MpmcLane(Shape shape) : shape_(shape) {}

  State first() const {
    State s{};
    s.kills = shape_.kills;
    return s;
  }
  void steps(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i) {
      if (lives(s.p[i])) {
        if (s.kills > 0) {
          State n = s;
          --n.kills;
          die(n, i);
          emit(i, Step::kill, n);
        }
        if (i < Producers) producer(s, i, emit);
        else consumer(s, i, emit);
      }
      repair(s, i, emit);
    }
    broker(s, emit);
  }

  const char* wrong(const State& s) const {
    for (int i = 0; i < P; ++i) {
      const Participant& me = s.p[i];
      if (!lives(me)) continue;
      for (int slot = 0; slot < S; ++slot) {
        if (me.local[slot] == 0) continue;
        if (s.slots[slot].generation != me.held[slot]) return "I2: a held slot has another message in it";
        if (me.pc != kLate && (s.slots[slot].holders & 1 << i) == 0) return "I3: a held slot without the holder's bit";
      }
      if (me.pc == kC6 && s.slots[me.slot].generation != me.generation)
        return "I2: a borrowed slot has another message in it";
      for (int j = i + 1; j < Producers; ++j)
        if (me.pc == kA4 && s.p[j].pc == kA4 && me.slot == s.p[j].slot) return "I1: two writers in one slot";
    }
    for (const Lane& lane : s.lanes)
      for (const Cell& cell : lane.cells)
        if (lane.open && cell.state != kEmpty && s.slots[cell.slot].generation != cell.generation)
          return "I2: the slot of a message in a lane has another message in it";
    return nullptr;
  }

  const char* wrong_at_rest(const State& s) const {
    for (const Slot& slot : s.slots)
      if (slot.holders != 0) return "I4: a bit is left in a mask";
    for (const Participant& p : s.p)
      if (p.state != kFree) return "I4: somebody is stuck, or a repair has not ended";
    for (const Lane& lane : s.lanes)
      if (lane.open) return "I4: a lane of the dead is not recycled";
    return nullptr;
  }

  std::string show(const State& s) const {
    std::string text = "holders";
    for (const Slot& slot : s.slots)
      text += " " + std::to_string(slot.holders) + "/g" + std::to_string(slot.generation);
    for (const Lane& lane : s.lanes) {
      if (!lane.open) continue;
      text += " | lane of p" + std::to_string(lane.from) + " head " + std::to_string(lane.head) + " cells";
      for (const Cell& cell : lane.cells)
        text += " " + std::to_string(cell.position) +
                (cell.state == kEmpty  ? "-"
                 : cell.state == kFull ? "full"
                                       : "claimed:p" + std::to_string(cell.state - kClaimedBy));
    }
    return text;
  }

 private:
  bool is(Broken variant) const { return shape_.broken == variant; }
  static bool lives(const Participant& p) { return p.pc != kNobody && p.pc != kKilled; }
  static bool is_live(const State& s, int index, int life) {
    return s.p[index].state == kLive && s.p[index].life == life;
  }
  static bool mine(const State& s, const Lane& lane, int i) {
    return lane.open && lane.from == i && lane.from_life == s.p[i].life;
  }
  std::uint8_t lives_of(int i) const { return i < Producers ? shape_.lives : shape_.consumer_lives; }
  bool may_come(const State& s, int first, int end) const {
    for (int i = first; i < end; ++i)
      if (s.p[i].state != kFree || s.p[i].life < lives_of(i)) return true;
    return false;
  }
  bool flies(const State& s, int i, int slot) const {
    for (const Lane& lane : s.lanes)
      for (int c = 0; c < C; ++c)
        if (mine(s, lane, i) && (lane.flying & 1 << c) != 0 && lane.sent[c] == slot) return true;
    return false;
  }

  template <class Change>
  void go(const State& s, int i, Step step, Emit<State>& emit, Change change) const {
    State n = s;
    Participant& me = n.p[i];
    change(n, me);
    if (me.pc == kIdle) forget(me);
    emit(i, step, n);
  }
  static void forget(Participant& me) { me.lane = me.head = me.position = me.slot = me.generation = me.keeps = 0; }
  static void die(State& n, int i) {
    Participant& me = n.p[i];
    for (Lane& lane : n.lanes)
      if (mine(n, lane, i)) {
        lane.flying = 0;
        std::ranges::fill(lane.sent, 0);
      }
    forget(me);
    std::ranges::fill(me.local, 0);
    std::ranges::fill(me.held, 0);
    me.pc = kKilled;
    me.repair = kD1;
  }

  void drops(const State& s, int i, Emit<State>& emit) const {
    for (int slot = 0; slot < S; ++slot) {
      if (s.p[i].local[slot] == 0 && !flies(s, i, slot) && (s.slots[slot].holders & 1 << i) != 0)
        go(s, i, Step::P1, emit,
           [&](State& n, Participant&) { n.slots[slot].holders &= static_cast<std::uint8_t>(~(1 << i)); });
      if (s.p[i].local[slot] > 0 && i >= Producers)
        go(s, i, Step::drop, emit, [&](State&, Participant& me) {
          if (is(Broken::taken_twice)) {
            me.pc = kAgain;
            me.slot = static_cast<std::uint8_t>(slot);
            me.generation = me.held[slot];
          }
          me.local[slot] = me.held[slot] = 0;
        });
    }
  }

  void producer(const State& s, int i, Emit<State>& emit) const {
    const std::uint8_t own = static_cast<std::uint8_t>(1 << i);
    const Participant& now = s.p[i];
    switch (now.pc) {
      case kA2:
        return go(s, i, Step::A2, emit, [&](State& n, Participant& me) {
          me.pc = kIdle;
          if (n.slots[now.slot].holders != 0) return;
          n.slots[now.slot].holders = own;
          me.pc = kA3;
        });
      case kA3:
        return go(s, i, Step::A3, emit, [&](State& n, Participant& me) {
          me.generation = ++n.slots[now.slot].generation;
          me.pc = kA4;
        });
      case kA4:
        return go(s, i, Step::A4, emit, [&](State&, Participant& me) {
          me.local[now.slot] = 1;
          me.held[now.slot] = now.generation;
          me.pc = kIdle;
        });
      case kK2:
        return go(s, i, Step::K2, emit, [&](State& n, Participant& me) {
          Cell& cell = n.lanes[now.lane].cells[now.position % C];
          cell.slot = now.slot;
          cell.generation = me.held[now.slot];
          me.pc = kK3;
        });
      case kK3:
        return go(s, i, Step::K3, emit, [&](State& n, Participant& me) {
          Lane& lane = n.lanes[now.lane];
          Cell& cell = lane.cells[now.position % C];
          cell.position = now.position;
          cell.state = kFull;
          lane.flying |= static_cast<std::uint8_t>(1 << now.position % C);
          lane.sent[now.position % C] = now.slot;
          ++lane.tail;
          me.local[now.slot] = me.held[now.slot] = 0;  // the application's reference goes with the message
          me.pc = kIdle;
        });
      default:
        break;
    }
    drops(s, i, emit);
    const bool has_one = std::ranges::any_of(now.local, [](auto count) { return count > 0; });
    bool more = true;
    for (std::uint8_t l = 0; l < L; ++l) {
      const Lane& lane = s.lanes[l];
      if (!mine(s, lane, i)) continue;
      more = lane.tail < shape_.messages;
      for (int c = 0; c < C; ++c) {
        if ((lane.flying & 1 << c) == 0) continue;
        const int k = last_at(lane, c);
        if (lane.cells[c].position > k)
          go(s, i, Step::KR, emit, [&](State& n, Participant&) { landed(n.lanes[l], c); });
        if (shape_.expiring && lane.cells[c].position == k && lane.cells[c].state == kFull)
          go(s, i, Step::KX, emit, [&](State& n, Participant&) {
            complete(n.lanes[l], k, emit);
            landed(n.lanes[l], c);
          });
      }
      const Cell& next = lane.cells[lane.tail % C];
      if (more && next.position == lane.tail && next.state == kEmpty && (lane.flying & 1 << lane.tail % C) == 0)
        for (std::uint8_t slot = 0; slot < S; ++slot)
          if (now.local[slot] > 0)
            go(s, i, Step::K1, emit, [&](State&, Participant& me) {
              me.lane = l;
              me.position = lane.tail;
              me.slot = slot;
              me.pc = kK2;
            });
    }
    for (std::uint8_t slot = 0; slot < S && more && !has_one; ++slot) {
      const std::uint8_t mask = s.slots[slot].holders;
      if (flies(s, i, slot) || (mask != 0 && mask != own)) continue;
      go(s, i, Step::A1, emit, [&](State&, Participant& me) {
        me.slot = slot;
        me.pc = mask == own ? kA3 : kA2;
      });
    }
    const bool in_vain = !may_come(s, Producers, P);  // a full lane and nobody who will ever read it
    if ((!more && !has_one) || in_vain) go(s, i, Step::leave, emit, [&](State& n, Participant&) { die(n, i); });
  }
  // The position of the sender's last message in this cell.
  static int last_at(const Lane& lane, int c) {
    int k = lane.tail - 1;
    while (k % C != c) --k;
    return k;
  }
  static void landed(Lane& lane, int c) {
    lane.flying &= static_cast<std::uint8_t>(~(1 << c));
    lane.sent[c] = 0;
  }
  // The cell of message k is done: for good.
  void complete(Lane& lane, int k, Emit<State>& emit) const {
    Cell& cell = lane.cells[k % C];
    cell = {static_cast<std::uint8_t>(k + C), kEmpty, 0, 0};
    if (++lane.taken[k] > 1) emit.fault("I5: a message was completed twice");
  }

  // The application has message k.
  void show_it(Lane& lane, int k, Emit<State>& emit) const {
    if (!shape_.at_least_once && ++lane.shown[k] > 1) emit.fault("I5: a message went to two applications");
  }

  void consumer(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const std::uint8_t claimed = static_cast<std::uint8_t>(kClaimedBy + i);
    switch (now.pc) {
      case kC1:  // what is done at the head
        return go(s, i, Step::C1, emit, [&](State& n, Participant& me) {
          const bool done = n.lanes[now.lane].cells[now.head % C].position > now.head;
          me.pc = done ? kC2 : kC3;
          me.position = done ? 0 : now.head;
        });
      case kC2:
        return go(s, i, Step::C2, emit, [&](State& n, Participant& me) {
          if (n.lanes[now.lane].head == now.head) ++n.lanes[now.lane].head;
          me.head = n.lanes[now.lane].head;
          me.pc = kC1;
        });
      case kC3:
        return go(s, i, Step::C3, emit, [&](State& n, Participant& me) {
          const Cell& cell = n.lanes[now.lane].cells[now.position % C];
          if (cell.position > now.position || cell.state >= kClaimedBy) {
            if (++me.position == now.head + C) me.pc = kIdle;
          } else if (cell.state == kEmpty) {
            me.pc = kIdle;
          } else {
            me.pc = kC4;
            if (!is(Broken::V20)) return;
            me.slot = cell.slot;
            me.generation = cell.generation;
          }
        });
      case kC4:
        return go(s, i, Step::C4, emit, [&](State& n, Participant& me) {
          Cell& cell = n.lanes[now.lane].cells[now.position % C];
          me.pc = kIdle;
          if (cell.state != kFull || (cell.position != now.position && !is(Broken::V20))) return;
          cell.state = claimed;
          me.position = cell.position;
          me.head = 0;
          me.pc = kC5;
          if (is(Broken::V23)) n.lanes[now.lane].head = static_cast<std::uint8_t>(now.position + 1);
        });
      case kC5:
        if (shape_.gives_back)  // seen by a wait, and nobody has come for it
          go(s, i, Step::C7, emit, [&](State& n, Participant& me) {
            n.lanes[now.lane].cells[now.position % C].state = kFull;
            me.pc = kIdle;
          });
        for (const bool keep : {false, true}) {
          if (keep ? shape_.at_least_once && !shape_.keeps : !shape_.at_least_once && !is(Broken::shown_when_claimed))
            continue;
          go(s, i, Step::C5, emit, [&](State& n, Participant& me) {
            const Cell& cell = n.lanes[now.lane].cells[now.position % C];
            if (!is(Broken::V20)) {
              me.slot = cell.slot;
              me.generation = cell.generation;
            }
            me.keeps = keep;
            me.pc = keep && !is(Broken::V21) ? kR3 : kC6;
            if (!keep) show_it(n.lanes[now.lane], now.position, emit);
          });
        }
        return;
      case kR3:
      case kLate:
        return go(s, i, Step::R3, emit, [&](State& n, Participant& me) {
          n.slots[now.slot].holders |= static_cast<std::uint8_t>(1 << i);
          me.local[now.slot] = 1;
          me.held[now.slot] = now.generation;
          me.pc = now.pc == kR3 ? kC6 : kIdle;
          if (is(Broken::shown_with_bit)) show_it(n.lanes[now.lane], now.position, emit);
        });
      case kAgain:
        drops(s, i, emit);
        if ((s.slots[now.slot].holders & 1 << i) == 0)
          go(s, i, Step::R3, emit, [&](State& n, Participant& me) {
            n.slots[now.slot].holders |= static_cast<std::uint8_t>(1 << i);
            me.pc = kIdle;
            if (n.slots[now.slot].generation != now.generation) return;
            me.local[now.slot] = 1;
            me.held[now.slot] = now.generation;
          });
        return;
      case kC6:
        if (shape_.gives_back && shape_.at_least_once && now.keeps == 0)
          go(s, i, Step::C7, emit, [&](State& n, Participant& me) {
            n.lanes[now.lane].cells[now.position % C].state = kFull;
            me.pc = kIdle;
          });
        return go(s, i, Step::C6, emit, [&](State& n, Participant& me) {
          Lane& lane = n.lanes[now.lane];
          if (lane.cells[now.position % C].state != claimed) emit.fault("I5: a claim was taken from a living consumer");
          complete(lane, now.position, emit);
          if (now.keeps != 0 && !is(Broken::shown_with_bit)) show_it(lane, now.position, emit);
          me.pc = kIdle;
          if (!is(Broken::V21) || now.keeps == 0) return;
          me.local[now.slot] = 1;
          me.held[now.slot] = now.generation;
          me.pc = kLate;
        });
      case kL2:  // the sender is gone, so a cell that is done stays done
        return go(s, i, Step::L2, emit, [&](State& n, Participant& me) {
          Lane& lane = n.lanes[now.lane];
          if (lane.cells[now.position].state != kEmpty &&
              !(is(Broken::through_too_early) && lane.cells[now.position].state >= kClaimedBy)) {
            me.pc = kIdle;
          } else if (++me.position == C) {
            me.pc = kIdle;
            lane.through |= static_cast<std::uint8_t>(1 << i);
            look_again(n);
          }
        });
      default:
        break;
    }
    drops(s, i, emit);
    bool through = true;
    for (std::uint8_t l = 0; l < L; ++l) {
      const Lane& lane = s.lanes[l];
      if (!lane.open || (lane.through & 1 << i) != 0) continue;
      through = false;
      const bool something = std::ranges::any_of(lane.cells, [](const Cell& cell) { return cell.state == kFull; });
      // It begins at the head, or where it remembers that all before is done. Every such place is tried: what it
      // remembers is then no part of the state.
      for (int begin = lane.head; begin <= lowest(lane); ++begin)
        if (something || begin != lowest(lane))  // else a look changes nothing
          go(s, i, Step::C1, emit, [&](State&, Participant& me) {
            me.lane = l;
            me.head = static_cast<std::uint8_t>(begin);
            me.pc = kC1;
          });
      if (!is_live(s, lane.from, lane.from_life))
        go(s, i, Step::L1, emit, [&](State&, Participant& me) {
          me.lane = l;
          me.pc = kL2;
        });
    }
    const bool nothing_held = std::ranges::all_of(now.local, [](auto count) { return count == 0; });
    if (through && nothing_held && !may_come(s, 0, Producers))
      go(s, i, Step::leave, emit, [&](State& n, Participant&) { die(n, i); });
  }
  // Where the head would come to rest.
  static int lowest(const Lane& lane) {
    int head = lane.head;
    while (lane.cells[head % C].position > head) ++head;
    return head;
  }

  void look_again(State& n) const {
    for (Participant& p : n.p)
      if (p.repair != kNone && p.repair != kD1) p.again = 1;
  }

  void repair(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const auto step = [&](Step name, auto change) {
      State n = s;
      change(n, n.p[i]);
      emit(-1, name, n);
    };
    const auto next = [&](Participant& me, Repair repair) {
      me.repair = repair;
      me.repair_at = 0;
    };
    switch (now.repair) {
      case kD1:
        return step(Step::D1, [&](State& n, Participant& me) {
          me.state = kDead;
          look_again(n);
          next(me, i < Producers ? kD3 : is(Broken::V24) || shape_.sweep_first ? kD4 : kD2);
          if (!is(Broken::V22)) return;
          me.state = kFree;  // and the sweeps still to come
          me.pc = kNobody;
        });
      case kD2:
        for (int at = now.repair_at; at < L * C; ++at) {
          const Cell& cell = s.lanes[at / C].cells[at % C];
          if (!s.lanes[at / C].open || cell.state != kClaimedBy + i) continue;
          return step(Step::D2, [&](State& n, Participant& me) {
            n.lanes[at / C].cells[at % C].state = kFull;
            me.repair_at = static_cast<std::uint8_t>(at + 1);
          });
        }
        return step(Step::D2, [&](State&, Participant& me) { next(me, shape_.sweep_first ? kD5 : kD4); });
      case kD3:
        for (int at = now.repair_at; at < L * C; ++at) {
          const Lane& lane = s.lanes[at / C];
          const Cell& cell = lane.cells[at % C];
          if (!mine(s, lane, i)) continue;
          const auto passed = [&](Participant& me) { me.repair_at = static_cast<std::uint8_t>(at + 1); };
          if (shape_.expiring && cell.state == kFull)
            step(Step::D3, [&](State& n, Participant& me) {
              complete(n.lanes[at / C], cell.position, emit);
              passed(me);
            });
          return step(Step::D3, [&](State&, Participant& me) {
            if (cell.state != kEmpty) me.keep |= static_cast<std::uint8_t>(1 << cell.slot);
            passed(me);
          });
        }
        return step(Step::D3, [&](State&, Participant& me) { next(me, kD4); });
      case kD4:
        for (int slot = now.repair_at; slot < S; ++slot) {
          if ((now.keep & 1 << slot) != 0 || (s.slots[slot].holders & 1 << i) == 0) continue;
          return step(Step::D4, [&](State& n, Participant& me) {
            n.slots[slot].holders &= static_cast<std::uint8_t>(~(1 << i));
            me.repair_at = static_cast<std::uint8_t>(slot + 1);
          });
        }
        return step(Step::D4,
                    [&](State&, Participant& me) { next(me, shape_.sweep_first && i >= Producers ? kD2 : kD5); });
      case kD5:
        return step(Step::D5,
                    [&](State&, Participant& me) { next(me, is(Broken::V22) && me.state != kDead ? kNone : kD6); });
      case kD6:
        return step(Step::D6, [&](State&, Participant& me) {
          if (me.keep != 0) return next(me, kWaiting);
          me.state = kFree;
          me.pc = kNobody;
          me.again = 0;
          next(me, kNone);
        });
      case kWaiting:
        if (now.again == 0 && !timer(s, i)) return;
        return step(Step::D6, [&](State&, Participant& me) {
          me.again = me.keep = 0;
          next(me, kD3);
        });
      default:
        return;
    }
  }
  // A deadline in a lane of this dead one passes.
  bool timer(const State& s, int i) const {
    if (!shape_.expiring) return false;
    return std::ranges::any_of(s.lanes, [&](const Lane& lane) {
      return mine(s, lane, i) && std::ranges::any_of(lane.cells, [](const Cell& cell) { return cell.state == kFull; });
    });
  }

  void broker(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i) {
      if (s.p[i].state != kFree || s.p[i].life == lives_of(i)) continue;
      State n = s;
      ++n.p[i].life;
      n.p[i].state = kLive;
      n.p[i].pc = kIdle;
      for (Lane& lane : n.lanes) lane.through &= static_cast<std::uint8_t>(~(1 << i));
      emit(-1, Step::join, n);
    }
    for (int i = 0; i < Producers; ++i) {
      if (s.p[i].state != kLive || std::ranges::any_of(s.lanes, [&](const Lane& lane) { return mine(s, lane, i); }))
        continue;
      const auto free = std::ranges::find_if(s.lanes, [](const Lane& lane) { return !lane.open; });
      if (free == std::end(s.lanes)) continue;
      State n = s;
      Lane& lane = n.lanes[free - std::begin(s.lanes)];
      lane.open = 1;
      lane.from = static_cast<std::uint8_t>(i);
      lane.from_life = s.p[i].life;
      for (int c = 0; c < C; ++c) lane.cells[c].position = static_cast<std::uint8_t>(c);
      emit(-1, Step::lane, n);
    }
    for (int l = 0; l < L; ++l) {
      const Lane& lane = s.lanes[l];
      if (!lane.open || is_live(s, lane.from, lane.from_life)) continue;
      const bool nobody_left = !may_come(s, Producers, P);
      if (!nobody_left && !drained(s, lane)) continue;
      State n = s;
      for (int k = 0; k < lane.tail && !nobody_left; ++k)
        if (lane.taken[k] != 1) emit.fault("I5: a published message is lost");
      n.lanes[l] = Lane{};
      look_again(n);
      emit(-1, Step::D7, n);
    }
  }
  bool drained(const State& s, const Lane& lane) const {
    for (int i = Producers; i < P; ++i)
      if (s.p[i].state == kLive && (lane.through & 1 << i) == 0 && !is(Broken::recycled_unasked)) return false;
    const auto done = [&](const Cell& cell) { return cell.state == kEmpty; };
    return is(Broken::through_too_early) ? lane.through != 0 : std::ranges::all_of(lane.cells, done);
  }

  Shape shape_;
};

template <int Producers, int Consumers, int S, int L, int C>
void add(std::vector<Instance>& all, std::string variant, std::string name, Shape shape, bool liveness = false,
         bool large = false) {
  all.push_back(
      instance(std::move(variant), std::move(name), MpmcLane<Producers, Consumers, S, L, C>(shape), liveness, large));
}

}  // namespace

void add_mpmc_lanes(std::vector<Instance>& all) {
  add<1, 2, 1, 1, 1>(all, "", "mpmc lane: 2 consumers, 2 messages, 1 cell, 1 slot, 1 kill", {.kills = 1, .messages = 2},
                     true);
  add<1, 2, 2, 1, 2>(all, "", "mpmc lane: 2 consumers, 2 messages, 2 cells, claims given back, 1 kill",
                     {.kills = 1, .messages = 2, .gives_back = true}, true);
  add<1, 2, 2, 1, 2>(all, "", "mpmc lane, at least once: 2 consumers, 2 messages, 2 cells, given back, 1 kill",
                     {.kills = 1, .messages = 2, .at_least_once = true, .keeps = false, .gives_back = true}, true);
  add<1, 1, 1, 1, 1>(all, "", "mpmc lane, at least once: producer x 2 lives, consumer x 2 lives, 2 kills",
                     {.lives = 2, .consumer_lives = 2, .kills = 2, .messages = 2, .at_least_once = true}, true);
  add<1, 1, 1, 1, 1>(all, "", "mpmc lane: producer x 2 lives, consumer x 2 lives, 2 kills",
                     {.lives = 2, .consumer_lives = 2, .kills = 2, .messages = 2}, true);
  add<1, 1, 1, 1, 1>(all, "", "mpmc lane, expiring: producer x 2 lives, consumer x 2 lives, 2 kills",
                     {.lives = 2, .consumer_lives = 2, .kills = 2, .messages = 2, .expiring = true}, true);
  add<1, 2, 1, 1, 2>(all, "", "mpmc lane, expiring: 2 consumers, 2 messages, 2 cells, 1 kill",
                     {.kills = 1, .messages = 2, .expiring = true}, true);
  add<1, 1, 1, 1, 1>(all, "", "mpmc lane, D4 before D2: consumer x 2 lives, 2 kills",
                     {.consumer_lives = 2, .kills = 2, .messages = 2, .sweep_first = true}, true);
  add<1, 2, 2, 1, 2>(all, "", "mpmc lane: 2 consumers x 2 lives, 3 messages, 2 cells, 2 kills",
                     {.consumer_lives = 2, .kills = 2, .messages = 3}, false, true);
  add<1, 2, 2, 1, 2>(all, "", "mpmc lane, at least once: 2 consumers x 2 lives, 2 messages, 2 cells, 2 kills",
                     {.consumer_lives = 2, .kills = 2, .messages = 2, .at_least_once = true, .gives_back = true}, false,
                     true);
  add<1, 3, 1, 1, 2>(all, "", "mpmc lane: 3 consumers, 2 messages, 2 cells, 2 kills", {.kills = 2, .messages = 2},
                     false, true);
  add<2, 1, 2, 2, 1>(all, "", "mpmc lane: 2 producers, consumer x 2 lives, 1 kill",
                     {.consumer_lives = 2, .kills = 1, .messages = 2}, false, true);

  const std::string name = "mpmc lane";
  add<1, 2, 1, 1, 1>(all, "V20", name, {.messages = 2, .at_least_once = true, .broken = Broken::V20});
  add<1, 1, 1, 1, 1>(all, "V21", name, {.messages = 2, .broken = Broken::V21});
  add<1, 1, 1, 1, 1>(all, "V22", name, {.consumer_lives = 2, .kills = 1, .messages = 2, .broken = Broken::V22});
  add<1, 2, 2, 1, 2>(all, "V23", name, {.kills = 1, .messages = 2, .broken = Broken::V23});
  add<1, 2, 1, 1, 1>(all, "V24", name, {.kills = 1, .messages = 1, .broken = Broken::V24});
  add<1, 2, 1, 1, 1>(all, "M1", "mpmc lane: a consumer is through while another still has a claim",
                     {.kills = 1, .messages = 1, .broken = Broken::through_too_early});
  add<1, 2, 1, 1, 1>(all, "M2", "mpmc lane: recycled when all cells are done, its consumers not asked",
                     {.lives = 2, .messages = 1, .broken = Broken::recycled_unasked});
  add<1, 2, 1, 1, 1>(all, "M16", "mpmc lane: the application reads in place, and the cell is done afterwards",
                     {.kills = 1, .messages = 1, .broken = Broken::shown_when_claimed});
  add<1, 2, 1, 1, 1>(all, "M17", "mpmc lane: the application has the slot before the cell is done",
                     {.kills = 1, .messages = 1, .broken = Broken::shown_with_bit});
  add<1, 1, 1, 1, 1>(all, "M18", "mpmc lane: a slot is taken out of a message that has given it back",
                     {.messages = 2, .broken = Broken::taken_twice});
}
}  // namespace shmb::model
