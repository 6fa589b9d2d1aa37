// SPDX-License-Identifier: Apache-2.0
// Pool and spsc lanes: acquire, send, borrow, keep, forward, return, drop, both ends' death, repair, indices and lane
// memory used again. Sequentially consistent: spsc lanes are message passing, nothing here is store-then-load.
//
// Each participant is a small machine: idle, it may begin any operation its budget allows; each case of `pc` is one
// atomic step with the private work that follows it. Guarded: I1, I2, I3, I4, I5, I6, I8 of docs/pool-model.md.
#include <algorithm>

#include "tests/model/instance.hpp"

namespace shmb::model {
namespace {

enum class Broken : std::uint8_t {
  none,
  P1,
  P2,
  V1,
  V2,
  V3,
  V4,
  V5,
  V6,
  V7,
  V8,
  V9,
  V10,
  sender_expires,
  untold,
  counted_before,  // a free slot is counted before its holder lets go of it
  sweep_uncounted,
  count_read_last  // the count is read after the slots
};

struct Shape {
  std::uint8_t lives = 1, kills = 0;
  std::uint8_t fresh = 1;      // acquisitions in all
  std::uint8_t sends = 1;      // per lane
  std::uint8_t refs = 2;       // most local references of one participant to one slot
  std::uint8_t producers = 1;  // bits: who acquires
  bool forward = false;        // receivers may send on what they keep
  bool leave_early = false;    // leave with messages still to come
  bool expiring = false;       // a deadline may have passed at any moment: its reader is done with it at its next look
  bool counted = false;        // a search passes over slots that it saw taken, until the count of freed slots moves
  Broken broken = Broken::none;
  std::vector<std::pair<int, int>> queues;  // from index, to index
};

template <int P, int S, int L, int C>
class SpscLane {
 public:
  enum Pc : std::uint8_t {
    kNobody,
    kIdle,
    kA1,
    kA2,
    kA3,
    kA4,
    kS1,
    kS2,
    kS3,
    kR2,
    kR3,
    kR4,
    kR3late,
    kL2,
    kP2,
    kKilled
  };
  enum Life : std::uint8_t { kFree, kLive, kDead };
  enum Repair : std::uint8_t { kNone, kD1, kD3, kD4, kCount, kD5, kD6, kWaiting };

  struct Cell {
    std::uint8_t word, slot, generation;  // word: position + 1 when full(position), 0 as prepared by the broker
  };
  struct Lane {
    std::uint8_t open, from, from_life, to, to_life, from_through, to_through;  // directory and the broker's memory
    std::uint8_t head;
    Cell cells[C];
    std::uint8_t tail, seen;  // the sender's memory: its position, and the head it saw last
    std::uint8_t sent[C];     // and the slots it has in flight
    std::uint8_t at;          // the receiver's memory: its position
  };
  struct Participant {
    std::uint8_t life, state;  // directory
    std::uint8_t pc, slot, lane, to_life, position, generation, scanned;
    std::uint8_t local[S], held[S];  // references of the application, and the generation they are for
    std::uint8_t known, moved;       // slots that a search saw taken; the count has moved since it read that
    std::uint8_t repair, again, repair_lane, repair_at, repair_left, repair_slot, keep,
        saw_free;  // the broker's memory
  };
  struct Slot {
    std::uint8_t holders, generation;
  };
  struct State {
    Participant p[P];
    Lane lanes[L];
    Slot slots[S];
    std::uint8_t kills, fresh;
  };
  static constexpr auto kParts = parts_of<P, L>(sizeof(Participant), sizeof(Lane), sizeof(State));

  explicit SpscLane(Shape shape) : shape_(std::move(shape)) {}

  State first() const {
    State s{};
    s.kills = shape_.kills;
    s.fresh = shape_.fresh;
    return s;
  }

  void steps(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i) {
      participant(s, i, emit);
      repair(s, i, emit);
    }
    broker(s, emit);
  }

  const char* wrong(const State& s) const {
    for (int a = 0; a < P; ++a) {
      const Participant& me = s.p[a];
      if (!lives(me)) continue;
      for (int b = a + 1; b < P; ++b)
        if (lives(s.p[b]) && me.pc == kA4 && s.p[b].pc == kA4 && me.slot == s.p[b].slot)
          return "I1: two writers in one slot";
      for (int slot = 0; slot < S; ++slot) {
        if (me.local[slot] == 0) continue;
        if (s.slots[slot].generation != me.held[slot]) return "I2: a held slot has another message in it";
        if ((s.slots[slot].holders & 1 << a) == 0 && me.pc != kR3late)
          return "I3: a held slot without the holder's bit";
      }
      for (int slot = 0; slot < S; ++slot)
        if ((me.known & 1 << slot) != 0 && !me.moved && s.slots[slot].holders == 0 && !will_be_counted(s, slot))
          return "I10: a free slot is passed over";
    }
    for (const Lane& lane : s.lanes) {
      if (!lane.open || lane.to_through || !receives(s, lane)) continue;
      if (lane.head != lane.at) return "I8: its sender is not told that a message is done";
      for (int k = lane.at; k < lane.at + C; ++k) {
        const Cell& cell = lane.cells[k % C];
        if (cell.word == k + 1 && s.slots[cell.slot].generation != cell.generation)
          return "I2: the slot of an unread message has another message in it";
      }
    }
    return nullptr;
  }

  const char* wrong_at_rest(const State& s) const {
    for (const Slot& slot : s.slots)
      if (slot.holders != 0) return "I4: a bit is left in a mask";
    for (const Participant& p : s.p)
      if (p.state != kFree) return "I4: a repair has not ended";
    for (const Lane& lane : s.lanes)
      if (lane.open) return "I4: a lane of the dead is not recycled";
    return nullptr;
  }

  std::string show(const State& s) const {
    std::string text = "holders";
    for (const Slot& slot : s.slots)
      text += " " + std::to_string(slot.holders) + "/g" + std::to_string(slot.generation);
    for (int l = 0; l < L; ++l) {
      const Lane& lane = s.lanes[l];
      if (!lane.open) continue;
      text += " | lane" + std::to_string(l) + " " + std::to_string(lane.from) + "->" + std::to_string(lane.to) +
              " head " + std::to_string(lane.head) + " words";
      for (const Cell& cell : lane.cells) text += " " + std::to_string(cell.word);
    }
    return text;
  }

 private:
  bool is(Broken variant) const { return shape_.broken == variant; }
  bool proposal() const { return is(Broken::P1) || is(Broken::P2); }
  static bool lives(const Participant& p) { return p.pc != kNobody && p.pc != kKilled; }
  // By the directory, as anybody may see it.
  static bool is_live(const State& s, int index, int life) {
    return s.p[index].state == kLive && s.p[index].life == life;
  }
  // Somebody has let go of the slot and counts it next, or the broker looks at all slots next.
  static bool will_be_counted(const State& s, int slot) {
    return std::ranges::any_of(s.p, [&](const Participant& p) {
      return (p.pc == kP2 && p.slot == slot) || (p.repair >= kD1 && p.repair <= kCount);
    });
  }
  static void count(State& n) {
    for (Participant& p : n.p) p.moved = 1;
  }
  static bool receives(const State& s, const Lane& lane) {  // in truth
    return is_live(s, lane.to, lane.to_life) && lives(s.p[lane.to]);
  }
  static bool mine(const State& s, const Lane& lane, int i) {
    return lane.open && lane.from == i && lane.from_life == s.p[i].life && !lane.from_through;
  }
  static bool towards_me(const State& s, const Lane& lane, int i) {
    return lane.open && lane.to == i && lane.to_life == s.p[i].life && !lane.to_through;
  }

  // Private count: references of the application and own cells in flight.
  int refs(const State& s, int i, int slot) const {
    int count = s.p[i].local[slot];
    if (is(Broken::V2) || proposal()) return count;
    for (const Lane& lane : s.lanes) {
      if (!mine(s, lane, i)) continue;
      for (int k = lane.seen; k < lane.tail; ++k)
        if (lane.sent[k % C] == slot) ++count;
    }
    return count;
  }

  void take(Participant& me, int slot) const {
    ++me.local[slot];
    me.held[slot] = me.generation;
  }

  void participant(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    if (!lives(now)) return;
    const std::uint8_t own = static_cast<std::uint8_t>(1 << i);
    const auto go = [&](Step step, auto change) {
      State n = s;
      change(n, n.p[i]);
      if (n.p[i].pc == kIdle) forget(n.p[i]);
      emit(i, step, n);
    };
    if (s.kills > 0)
      go(Step::kill, [&](State& n, Participant& me) {
        --n.kills;
        die(n, me, i);
      });
    switch (now.pc) {
      case kIdle:
        return idle(s, i, emit);
      case kA1:
        if (shape_.counted)
          return go(Step::A1, [&](State& n, Participant& me) {
            me.pc = kA2;
            me.slot = me.scanned;
            if (n.slots[me.slot].holders != 0) pass_over(n, me, i);
          });
        // V10: one word per participant, read one after another
        return go(Step::A1, [&](State& n, Participant& me) {
          if (me.scanned != i && (n.slots[me.slot].holders & 1 << me.scanned) != 0) me.pc = kIdle;
          else if (++me.scanned == P) me.pc = kA2;
        });
      case kA2:
        return go(Step::A2, [&](State& n, Participant& me) {
          Slot& slot = n.slots[me.slot];
          me.pc = kIdle;
          if (shape_.counted && n.fresh == 0) return;  // the last acquisition was somebody else's
          if (slot.holders != 0 && shape_.counted) return pass_over(n, me, i);
          if (slot.holders != 0 && !is(Broken::V10)) return;
          slot.holders |= own;
          if (shape_.counted) --n.fresh;
          me.pc = kA3;
        });
      case kA3:
        return go(Step::A3, [&](State& n, Participant& me) {
          me.generation = ++n.slots[me.slot].generation;
          me.pc = kA4;
        });
      case kA4:
        return go(Step::A4, [&](State&, Participant& me) {
          me.local[me.slot] = 1;
          me.held[me.slot] = me.generation;
          me.pc = kIdle;
        });
      case kS1:  // the first proposal: the sender sets the receiver's bit
        if (now.scanned == 0)
          return go(Step::R3, [&](State& n, Participant& me) {
            n.slots[me.slot].holders |= static_cast<std::uint8_t>(1 << n.lanes[me.lane].to);
            me.scanned = 1;
          });
        return go(Step::S1, [&](State& n, Participant& me) { write_body(n, me, i, emit); });
      case kS2:
        return go(Step::S2, [&](State& n, Participant& me) {
          Lane& lane = n.lanes[me.lane];
          if (!mine(n, lane, i) || lane.to_life != me.to_life) emit.fault("I6: a word written into a lane of others");
          lane.cells[me.position % C].word = static_cast<std::uint8_t>(me.position + 1);
          lane.sent[me.position % C] = me.slot;
          ++lane.tail;  // the sender's own
          me.pc = kS3;
        });
      case kS3:  // the word in the lane is a hint that nobody relies on
        return go(Step::S3, [&](State&, Participant& me) { me.pc = kIdle; });
      case kR2:
        return receive(s, i, emit);
      case kR3:
        return go(Step::R3, [&](State& n, Participant& me) {
          n.slots[me.slot].holders |= own;
          take(me, me.slot);
          me.pc = kR4;
        });
      case kR4:
        return go(Step::R4, [&](State& n, Participant& me) {
          Lane& lane = n.lanes[me.lane];
          Cell& cell = lane.cells[lane.at % C];
          cell.slot = cell.generation = 0;  // nobody reads it before the next S1: fewer states that mean the same
          ++lane.at;
          if (!is(Broken::untold) || me.scanned == 0) lane.head = lane.at;
          me.pc = kIdle;
          if (!is(Broken::V3) || me.scanned == 0) return;
          take(me, me.slot);  // the application has it from here on
          me.pc = kR3late;
        });
      case kR3late:
        return go(Step::R3, [&](State& n, Participant& me) {
          n.slots[me.slot].holders |= own;
          me.pc = kIdle;
        });
      case kL2:
        return go(Step::L2, [&](State& n, Participant& me) {
          Lane& lane = n.lanes[me.lane];
          me.pc = kIdle;
          if (is(Broken::V7) ? is_live(s, lane.from, lane.from_life) : lane.cells[lane.at % C].word == lane.at + 1)
            return;
          through(n, lane, emit);
        });
      case kP2:
        if (is(Broken::counted_before))
          return go(Step::P1, [&](State& n, Participant& me) {
            n.slots[me.slot].holders &= static_cast<std::uint8_t>(~own);
            me.pc = kIdle;
          });
        return go(Step::P2, [&](State& n, Participant& me) {
          count(n);
          me.pc = kIdle;
        });
      default:
        return;
    }
  }

  // The slot is taken: the search goes on with the next one that it does not know of, or ends.
  void pass_over(State& n, Participant& me, int i) const {
    me.known |= static_cast<std::uint8_t>(1 << me.slot);
    go_on_looking(n, me, i);
  }
  void go_on_looking(State& n, Participant& me, int i) const {
    const auto known = [&](int slot) {
      if ((n.slots[slot].holders & 1 << i) != 0 || refs(n, i, slot) > 0)  // its own: freed by P1 of its own
        me.known |= static_cast<std::uint8_t>(1 << slot);
      return (me.known & 1 << slot) != 0;
    };
    while (me.scanned < S && known(me.scanned)) ++me.scanned;
    me.pc = me.scanned == S ? kIdle : kA1;
    if (me.pc == kIdle && is(Broken::count_read_last)) me.moved = 0;
  }

  // The participant has a place in a lane it knows; from here on the lane may become somebody else's.
  void send(const State& s, int i, std::uint8_t l, std::uint8_t slot, Emit<State>& emit) const {
    State n = s;
    Participant& me = n.p[i];
    me.slot = slot;
    me.lane = l;
    me.to_life = s.lanes[l].to_life;
    me.position = s.lanes[l].tail;
    if (proposal()) me.pc = kS1;  // writes down what it is about to do
    else write_body(n, me, i, emit);
    emit(i, proposal() ? Step::S0 : Step::S1, n);
  }
  void write_body(State& n, Participant& me, int i, Emit<State>& emit) const {
    Lane& lane = n.lanes[me.lane];
    if (!mine(n, lane, i) || lane.to_life != me.to_life) emit.fault("I6: a body written into a lane of others");
    lane.cells[me.position % C].slot = me.slot;
    lane.cells[me.position % C].generation = me.held[me.slot];
    me.pc = kS2;
  }

  // The handle has been seen full (R1). R2 copies it; then the application reads in place, or keeps the slot. It never
  // sees a message that is too old by then: the reader says done at once.
  void receive(const State& s, int i, Emit<State>& emit) const {
    for (const bool keep : {false, true}) {
      State n = s;
      Participant& me = n.p[i];
      const Cell& cell = n.lanes[me.lane].cells[n.lanes[me.lane].at % C];
      me.slot = cell.slot;
      me.generation = cell.generation;
      me.pc = kR4;
      if (keep ? me.local[me.slot] >= shape_.refs : proposal()) continue;
      if (keep && is(Broken::V3)) me.scanned = 1;
      else if (keep && (refs(s, i, me.slot) > 0 || proposal())) take(me, me.slot);  // the bit is set already
      else if (keep) me.pc = kR3;
      emit(i, Step::R2, n);
    }
    if (!shape_.expiring) return;
    State n = s;
    n.p[i].pc = kR4;
    n.p[i].scanned = is(Broken::untold);
    emit(i, Step::R2, n);
  }

  void idle(const State& s, int i, Emit<State>& emit) const {
    const std::uint8_t own = static_cast<std::uint8_t>(1 << i);
    const auto go = [&](Step step, auto change) {
      State n = s;
      change(n, n.p[i]);
      if (n.p[i].pc == kIdle) forget(n.p[i]);
      emit(i, step, n);
    };
    const bool produces = (shape_.producers & own) != 0;
    bool all_through = true;
    for (std::uint8_t slot = 0; slot < S; ++slot) {
      const std::uint8_t mask = s.slots[slot].holders;
      if (refs(s, i, slot) == 0) {
        const bool kept = (mask & own) != 0;
        const bool free = kept ? mask == own || is(Broken::V9) : mask == 0 || is(Broken::V10);
        if (free && s.fresh > 0 && produces && (kept || !shape_.counted))
          go(Step::A1, [&](State& n, Participant& me) {
            --n.fresh;
            me.slot = slot;
            me.pc = kept ? kA3 : is(Broken::V10) ? kA1 : kA2;
          });
        if (kept && is(Broken::counted_before))
          go(Step::P2, [&](State& n, Participant& me) {
            count(n);
            me.slot = slot;
            me.pc = kP2;
          });
        else if (kept && !proposal())
          go(Step::P1, [&](State& n, Participant& me) {
            n.slots[slot].holders &= static_cast<std::uint8_t>(~own);
            if (!shape_.counted || n.slots[slot].holders != 0) return;
            me.slot = slot;
            me.pc = kP2;
          });
      }
      if (s.p[i].local[slot] > 0)
        go(Step::drop, [&](State& n, Participant& me) {
          if (--me.local[slot] == 0) me.held[slot] = 0;
          if (is(Broken::V4) || (proposal() && me.local[slot] == 0))
            n.slots[slot].holders &= static_cast<std::uint8_t>(~own);
        });
    }
    if (shape_.counted && produces && s.fresh > 0)
      go(Step::A0, [&](State& n, Participant& me) {
        if (me.moved) me.known = 0;
        if (!is(Broken::count_read_last)) me.moved = 0;
        go_on_looking(n, me, i);
      });
    for (std::uint8_t l = 0; l < L; ++l) {
      const Lane& lane = s.lanes[l];
      if (mine(s, lane, i)) {
        if (!is_live(s, lane.to, lane.to_life)) {
          go(Step::L3, [&](State& n, Participant&) {
            reclaim(n.lanes[l], lane.tail);
            n.lanes[l].from_through = 1;
          });
        } else {
          if (is(Broken::sender_expires) && lane.seen < lane.tail)
            go(Step::S0, [&](State& n, Participant&) { reclaim(n.lanes[l], lane.seen + 1); });
          if (lane.head != lane.seen) go(Step::S0, [&](State& n, Participant&) { reclaim(n.lanes[l], lane.head); });
          if (lane.tail < shape_.sends && lane.tail - lane.seen < C)
            for (std::uint8_t slot = 0; slot < S; ++slot)
              if (s.p[i].local[slot] > 0 && (shape_.forward || produces)) send(s, i, l, slot, emit);
        }
      }
      if (towards_me(s, lane, i)) {
        all_through = false;
        const bool full = lane.cells[lane.at % C].word == lane.at + 1;
        if (full)
          go(Step::R1, [&](State&, Participant& me) {
            me.lane = l;
            me.pc = kR2;
          });
        else if (is(Broken::V7) || !is_live(s, lane.from, lane.from_life))
          go(Step::L1, [&](State&, Participant& me) {
            me.lane = l;
            me.pc = kL2;
          });
      }
    }
    const bool nothing_held = std::ranges::all_of(s.p[i].local, [](auto count) { return count == 0; });
    if ((s.fresh == 0 || !anybody_sends(s)) && nothing_held && (all_through || shape_.leave_early))
      go(Step::leave, [&](State& n, Participant& me) { die(n, me, i); });
  }
  static void reclaim(Lane& lane, std::uint8_t until) {
    for (; lane.seen < until; ++lane.seen) lane.sent[lane.seen % C] = 0;
  }
  void through(State& n, Lane& lane, Emit<State>& emit) const {
    lane.to_through = 1;
    if (lane.tail != lane.at) emit.fault("I5: a published message is not delivered");
    look_again(n);
  }
  bool anybody_sends(const State& s) const {
    for (int i = 0; i < P; ++i)
      if ((shape_.producers & 1 << i) != 0 && (s.p[i].state != kFree || s.p[i].life < shape_.lives)) return true;
    return false;
  }
  void look_again(State& n) const {
    for (Participant& p : n.p)
      if (p.repair != kNone && p.repair != kD1) p.again = 1;
  }

  static void forget(Participant& me) { me.slot = me.lane = me.to_life = me.position = me.generation = me.scanned = 0; }
  static void die(State& n, Participant& me, int i) {
    forget(me);
    for (Lane& lane : n.lanes) {  // private memory dies, too
      if (lane.open && lane.from == i && lane.from_life == me.life) {
        lane.seen = 0;
        std::ranges::fill(lane.sent, 0);
      }
      if (lane.open && lane.to == i && lane.to_life == me.life) lane.at = 0;
    }
    std::ranges::fill(me.local, 0);
    std::ranges::fill(me.held, 0);
    me.known = me.moved = 0;
    me.pc = kKilled;
    me.repair = kD1;
  }

  // One participant's repair; several may run, step by step between each other.
  void repair(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const auto go = [&](Step step, auto change) {
      State n = s;
      change(n, n.p[i]);
      emit(-1, step, n);
    };
    switch (now.repair) {
      case kD1:
        return go(Step::D1, [&](State& n, Participant& me) {
          me.state = kDead;
          look_again(n);
          start_d3(me);
          if (is(Broken::V1) || is(Broken::V8)) me.repair = kD4;
        });
      case kD3:
        return go(Step::D3, [&](State& n, Participant& me) { d3(n, me, i); });
      case kD4:
        if (shape_.counted && now.repair_slot < S)
          return go(Step::D4, [&](State& n, Participant& me) {
            std::uint8_t& holders = n.slots[me.repair_slot].holders;
            if ((me.keep & 1 << me.repair_slot) == 0) holders &= static_cast<std::uint8_t>(~(1 << i));
            me.saw_free |= holders == 0;
            if (++me.repair_slot == S) me.repair = kCount;
          });
        for (std::uint8_t slot = now.repair_slot; slot < S; ++slot) {
          if ((now.keep & 1 << slot) != 0 || (s.slots[slot].holders & 1 << i) == 0) continue;
          return go(Step::D4, [&](State& n, Participant& me) {
            n.slots[slot].holders &= static_cast<std::uint8_t>(~(1 << i));
            me.repair_slot = static_cast<std::uint8_t>(slot + 1);
          });
        }
        return go(Step::D5, [&](State&, Participant& me) {  // wakes peers: the wake model's matter
          me.repair_slot = 0;
          me.repair = is(Broken::V6) && me.state != kDead ? kNone : kD6;
          if (is(Broken::V8) && me.repair_lane == 0) start_d3(me);
        });
      case kCount:
        return go(Step::D4, [&](State& n, Participant& me) {
          if (me.saw_free && !is(Broken::sweep_uncounted)) count(n);
          me.saw_free = me.repair_slot = 0;
          me.repair = kD6;
        });
      case kD6:
        return go(Step::D6, [&](State&, Participant& me) {
          if (me.keep == 0) {
            free_index(me);
          } else {
            me.repair = kWaiting;
          }
        });
      case kWaiting:
        if (now.again == 0) return;
        return go(Step::D6, [&](State&, Participant& me) { start_d3(me); });
      default:
        return;
    }
  }
  void free_index(Participant& me) const {
    me.state = kFree;
    me.pc = kNobody;
    me.repair = kNone;
    me.again = 0;
  }
  void start_d3(Participant& me) const {
    me.repair = kD3;
    me.again = me.keep = me.repair_lane = me.repair_at = me.repair_left = me.repair_slot = 0;
  }
  // One load: a lane's head, or a cell's word.
  void d3(State& n, Participant& me, int i) const {
    if (me.repair_left > 0) {
      const Cell& cell = n.lanes[me.repair_lane].cells[me.repair_at % C];
      if (cell.word == me.repair_at + 1) {
        me.keep |= static_cast<std::uint8_t>(1 << cell.slot);
        ++me.repair_at;
        --me.repair_left;
      } else {
        me.repair_left = 0;
      }
      if (me.repair_left > 0) return;
      ++me.repair_lane;
      me.repair_at = 0;
    }
    for (; me.repair_lane < L; ++me.repair_lane) {
      const Lane& lane = n.lanes[me.repair_lane];
      if (!lane.open || lane.from != i || lane.from_life != me.life || lane.from_through || lane.to_through) continue;
      if (!is_live(n, lane.to, lane.to_life)) continue;
      me.repair_at = lane.head;
      me.repair_left = C;
      return;
    }
    me.repair_lane = is(Broken::V8) ? L : 0;
    me.repair = kD4;
    if (!is(Broken::V6) || me.keep != 0) return;
    me.state = kFree;  // the index is given out while D4 still runs
    me.pc = kNobody;
  }

  // Newcomers, new lanes, D7.
  void broker(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i)
      if (s.p[i].state == kFree && s.p[i].life < shape_.lives) {
        State n = s;
        ++n.p[i].life;
        n.p[i].state = kLive;
        n.p[i].pc = kIdle;
        emit(-1, Step::join, n);
      }
    for (const auto& [from, to] : shape_.queues) {
      if (s.p[from].state != kLive || s.p[to].state != kLive) continue;
      const auto same = [&, from = from, to = to](const Lane& lane) {
        return lane.open && lane.from == from && lane.from_life == s.p[from].life && lane.to == to &&
               lane.to_life == s.p[to].life;
      };
      if (std::ranges::any_of(s.lanes, same)) continue;
      const auto free = std::ranges::find_if(s.lanes, [](const Lane& lane) { return !lane.open; });
      if (free == std::end(s.lanes)) continue;
      State n = s;
      Lane& lane = n.lanes[free - std::begin(s.lanes)];
      lane = Lane{};
      lane.open = 1;
      lane.from = static_cast<std::uint8_t>(from);
      lane.from_life = s.p[from].life;
      lane.to = static_cast<std::uint8_t>(to);
      lane.to_life = s.p[to].life;
      emit(-1, Step::lane, n);
    }
    for (int l = 0; l < L; ++l) {
      const Lane& lane = s.lanes[l];
      if (!lane.open) continue;
      const bool from_gone = lane.from_through || !is_live(s, lane.from, lane.from_life);
      const bool to_gone = lane.to_through || !is_live(s, lane.to, lane.to_life);
      if (is(Broken::V5) ? !(from_gone || to_gone) : !(from_gone && to_gone)) continue;
      State n = s;
      n.lanes[l] = Lane{};
      emit(-1, Step::D7, n);
    }
  }

  Shape shape_;
};

template <int P, int S, int L, int C>
void add(std::vector<Instance>& all, std::string variant, std::string name, Shape shape, bool liveness = false,
         bool large = false) {
  all.push_back(instance(std::move(variant), std::move(name), SpscLane<P, S, L, C>(std::move(shape)), liveness, large));
}

}  // namespace

void add_spsc_lanes(std::vector<Instance>& all) {
  const std::vector<std::pair<int, int>> there{{0, 1}}, there_and_back{{0, 1}, {1, 0}}, forward{{0, 1}, {1, 2}, {0, 2}};
  add<2, 2, 1, 1>(all, "", "pool alone: 2 indices x 2 lives, 2 slots, 2 kills",
                  {.lives = 2, .kills = 2, .fresh = 3, .producers = 3}, true);
  add<2, 2, 1, 1>(all, "", "pool alone, free slots counted: 2 indices x 2 lives, 2 slots, 2 kills",
                  {.lives = 2, .kills = 2, .fresh = 3, .producers = 3, .counted = true}, true);
  add<3, 2, 1, 1>(all, "", "pool alone, free slots counted: 3 indices, 2 slots, 1 kill",
                  {.kills = 1, .fresh = 3, .producers = 7, .counted = true}, true);
  add<2, 1, 2, 1>(all, "", "spsc lane, free slots counted: 2 indices x 2 lives, 1 slot, 1 cell, 1 kill",
                  {.lives = 2, .kills = 1, .fresh = 2, .refs = 1, .producers = 3, .counted = true, .queues = there},
                  true);
  add<2, 2, 2, 2>(all, "", "spsc lane: 2 indices x 2 lives, 2 slots, 2 cells, 1 kill",
                  {.lives = 2, .kills = 1, .fresh = 2, .sends = 2, .refs = 1, .queues = there}, true);
  add<2, 1, 2, 2>(all, "", "spsc lane: 2 indices x 2 lives, 1 slot, 2 cells, slot sent three times, 2 kills",
                  {.lives = 2, .kills = 2, .fresh = 2, .sends = 3, .queues = there}, true);
  add<2, 2, 2, 2>(all, "", "spsc lane, expiring: 2 indices x 2 lives, 2 slots, 2 cells, 1 kill",
                  {.lives = 2, .kills = 1, .fresh = 2, .sends = 2, .refs = 1, .expiring = true, .queues = there}, true);
  add<2, 1, 2, 2>(
      all, "", "spsc lane, expiring: 2 indices x 2 lives, 1 slot, who reads may leave at any time, 2 kills",
      {.lives = 2, .kills = 2, .fresh = 2, .sends = 2, .leave_early = true, .expiring = true, .queues = there}, true);
  add<2, 1, 2, 2>(
      all, "", "lanes there and back: 2 indices x 2 lives, 1 slot, 1 kill",
      {.lives = 2, .kills = 1, .fresh = 2, .sends = 1, .forward = true, .leave_early = true, .queues = there_and_back});
  add<3, 1, 3, 1>(all, "", "forwarding: lanes 0->1->2 and 0->2, 1 slot, nobody dies",
                  {.fresh = 2, .refs = 1, .forward = true, .queues = forward}, true);
  add<3, 1, 2, 1>(all, "", "forwarding: lanes 0->1->2, 1 slot acquired once, 1 kill",
                  {.kills = 1, .fresh = 1, .refs = 1, .forward = true, .queues = {{0, 1}, {1, 2}}}, true);
  add<3, 2, 1, 1>(all, "", "pool alone: 3 indices x 2 lives, 2 slots, 3 kills",
                  {.lives = 2, .kills = 3, .fresh = 4, .producers = 7}, true, true);
  add<3, 2, 1, 1>(all, "", "pool alone, free slots counted: 3 indices, 2 slots, 4 acquisitions, 2 kills",
                  {.kills = 2, .fresh = 4, .producers = 7, .counted = true}, true, true);
  add<2, 2, 2, 2>(all, "", "spsc lane: 2 indices x 2 lives, 2 slots, 2 cells, 3 kills",
                  {.lives = 2, .kills = 3, .fresh = 2, .sends = 2, .queues = there}, false, true);
  add<2, 1, 2, 2>(
      all, "", "lanes there and back: 2 indices x 2 lives, 1 slot, 2 kills",
      {.lives = 2, .kills = 2, .fresh = 2, .sends = 2, .forward = true, .leave_early = true, .queues = there_and_back},
      false, true);
  add<3, 1, 3, 1>(all, "", "forwarding: lanes 0->1->2 and 0->2, 1 slot, 1 kill",
                  {.kills = 1, .fresh = 2, .refs = 1, .forward = true, .queues = forward}, true, true);

  const std::string two = "two participants, one lane", alone = "pool alone", three = "three participants, forwarding";
  add<2, 1, 2, 2>(all, "P1", two, {.fresh = 2, .sends = 2, .broken = Broken::P1, .queues = there});
  add<2, 1, 2, 2>(all, "P2", two, {.kills = 1, .broken = Broken::P2, .queues = there});
  add<2, 1, 2, 2>(all, "V1", two, {.lives = 2, .kills = 1, .fresh = 2, .broken = Broken::V1, .queues = there});
  add<2, 1, 2, 2>(all, "V2", two, {.fresh = 2, .broken = Broken::V2, .queues = there});
  add<2, 1, 2, 2>(all, "V3", two, {.fresh = 2, .broken = Broken::V3, .queues = there});
  add<2, 1, 2, 2>(all, "V4", two, {.fresh = 2, .sends = 2, .broken = Broken::V4, .queues = there});
  add<2, 1, 1, 2>(all, "V5", two, {.lives = 2, .kills = 1, .broken = Broken::V5, .queues = there});
  add<2, 2, 1, 1>(all, "V6", alone, {.lives = 2, .kills = 1, .fresh = 3, .producers = 3, .broken = Broken::V6});
  add<2, 1, 2, 2>(all, "V7", two, {.kills = 1, .broken = Broken::V7, .queues = there});
  add<2, 1, 2, 2>(all, "V8", two,
                  {.lives = 2, .kills = 1, .fresh = 2, .producers = 3, .broken = Broken::V8, .queues = there});
  add<2, 1, 2, 2>(all, "V9", two, {.fresh = 2, .broken = Broken::V9, .queues = there});
  add<2, 1, 2, 2>(all, "M10",
                  two + ": the sender of an spsc lane takes back what is too old, as that of an mpmc lane does",
                  {.fresh = 2, .sends = 2, .expiring = true, .broken = Broken::sender_expires, .queues = there});
  add<2, 1, 2, 2>(all, "M11", two + ": what is too old is passed over without R4",
                  {.sends = 2, .expiring = true, .broken = Broken::untold, .queues = there});
  const std::string counted = alone + ", free slots counted: ";
  add<2, 2, 1, 1>(all, "M19", counted + "P2 before P1",
                  {.fresh = 3, .producers = 3, .counted = true, .broken = Broken::counted_before});
  add<2, 2, 1, 1>(all, "M20", counted + "the sweep counts nothing",
                  {.kills = 1, .fresh = 3, .producers = 3, .counted = true, .broken = Broken::sweep_uncounted});
  add<2, 2, 1, 1>(all, "M21", counted + "the count is read after the slots",
                  {.fresh = 3, .producers = 3, .counted = true, .broken = Broken::count_read_last});
  add<3, 1, 3, 1>(all, "V10", three,
                  {.fresh = 2, .producers = 5, .forward = true, .broken = Broken::V10, .queues = {{2, 1}, {0, 1}}});
}
}  // namespace shmb::model
