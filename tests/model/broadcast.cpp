// SPDX-License-Identifier: Apache-2.0
// Broadcast: a ring per writer, readers with positions, joiners, writers that die and are followed by another, both
// policies: block, and drop-oldest. With store buffers (TSO): a plain store reaches memory at any later time, in
// order; read-modify-writes and full fences wait until the buffer is empty, and a killed process's buffer still drains.
//
// Guarded: I1 to I5, I7, I8 of docs/pool-model.md, and that nobody writes into a ring that is recycled (I6).
#include <algorithm>

#include "tests/model/instance.hpp"

namespace shmb::model {
namespace {

enum class Broken : std::uint8_t {
  none,
  V11,
  V12_no_second_look,
  V12_no_busy,
  V13,
  V14,
  V25,
  no_j3,
  no_w1_fence,
  recycled_by_positions,
  late_readers,
  untold,
  positions_outlive_ends
};

struct Shape {
  std::uint8_t messages = 2, kills = 0, reader_lives = 1;
  bool drop_oldest = false;
  bool keeps = true, borrows = true;
  bool expiring = false;     // a deadline may have passed at any moment: the reader is done with it at its next look
  std::uint8_t returns = 0;  // so often a reader closes its end and opens another one, on the same index, in one life
  Broken broken = Broken::none;
};

// Writers are the first indices, one ring each, in their order; readers the others. S slots, C cells.
template <int Writers, int Readers, int S, int C>
class Broadcast {
 public:
  static constexpr int P = Writers + Readers, kBuffer = 5;
  enum Pc : std::uint8_t {
    kNobody,
    kIdle,
    kKilled,
    kScan,
    kA2,
    kA2l,
    kA3,
    kA4,
    kW2,
    kP1,
    kW3,
    kW4,
    kW5,  // writer
    kJ2,
    kJ3,
    kJ4,
    kJ5,
    kJ6,
    kJ7,
    kQ2,
    kR3,
    kQ4,
    kR3u,
    kQ5,
    kL2,
    kL4,
    kThrough,
    kClose  // reader
  };
  enum Life : std::uint8_t { kFree, kLive, kDead };
  enum Repair : std::uint8_t { kNone, kD1, kD2, kD3, kD3cells, kD4, kD5, kD6, kWaiting };
  enum Word : std::uint8_t { kEmpty, kFull, kBusy };
  enum Where : std::uint8_t { kWord, kBody, kTail, kPosition, kGeneration };

  struct Cell {
    std::uint8_t position, state, slot, generation, message;
  };
  struct Ring {
    std::uint8_t recycled, through;  // the broker's books; a bit per reader
    std::uint8_t early;              // which readers were there before the ring
    std::uint8_t tail, positions[Readers];
    Cell cells[C];
    std::uint8_t sent[C];  // the writer's memory: 1 + slot
  };
  struct Buffered {
    std::uint8_t where, ring, index, value[3];
  };
  struct Participant {
    std::uint8_t life, state;
    std::uint8_t pc, ring, slot, generation, at, attached;  // at: the next position to write or to read
    std::uint8_t limit, scan, lowest;                       // writer
    std::uint8_t message, keeps, away;                      // reader; away: has no end of the queue
    std::uint8_t local[S], held[S];
    std::uint8_t buffered;
    Buffered buffer[kBuffer];
    std::uint8_t repair, again, repair_at, keep, keep_ring;
  };
  struct Slot {
    std::uint8_t holders, generation;
  };
  struct State {
    Participant p[P];
    Ring rings[Writers];
    Slot slots[S];
    std::uint8_t kills, returns;
  };
  static constexpr auto kParts = parts_of<P, Writers>(sizeof(Participant), sizeof(Ring), sizeof(State));

  explicit Broadcast(Shape shape) : shape_(shape) {}

  State first() const {
    State s{};
    s.kills = shape_.kills;
    s.returns = shape_.returns;
    for (int w = 0; w < Writers; ++w) s.p[w].ring = static_cast<std::uint8_t>(w);
    return s;
  }
  void steps(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i) {
      if (s.p[i].buffered > 0) {
        State n = s;
        drain(n, i, emit);
        emit(i, Step::drain, n);
      }
      if (lives(s.p[i])) {
        if (s.kills > 0) {
          State n = s;
          --n.kills;
          die(n, i);
          emit(i, Step::kill, n);
        }
        if (s.p[i].buffered < kBuffer) i < Writers ? writer(s, i, emit) : reader(s, i, emit);
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
        if (me.local[slot] == 0 || i < Writers) continue;
        if (s.slots[slot].generation != me.held[slot]) return "I2: a held slot has another message in it";
        if ((s.slots[slot].holders & 1 << i) == 0) return "I3: a held slot without the holder's bit";
      }
      if (me.pc == kQ5 && me.keeps == 0 && s.slots[me.slot].generation != me.generation)
        return "I2: a borrowed slot has another message in it";
      for (int j = i + 1; j < Writers; ++j)
        if (me.pc == kA4 && s.p[j].pc == kA4 && me.slot == s.p[j].slot) return "I1: two writers in one slot";
    }
    return nullptr;
  }
  const char* wrong_at_rest(const State& s) const {
    for (const Slot& slot : s.slots)
      if (slot.holders != 0) return "I4: a bit is left in a mask";
    for (int i = 0; i < P; ++i)
      if (s.p[i].state != kFree) return i < Writers ? "I8: a writer is stuck" : "I4: a reader is stuck";
    for (const Ring& ring : s.rings)
      if (!ring.recycled) return "I4: a ring of the dead is not recycled";
    return nullptr;
  }
  std::string show(const State& s) const {
    std::string text = "holders";
    for (const Slot& slot : s.slots)
      text += " " + std::to_string(slot.holders) + "/g" + std::to_string(slot.generation);
    for (int r = 0; r < Writers; ++r) {
      text += " | ring" + std::to_string(r) + " tail " + std::to_string(s.rings[r].tail) + " cells";
      for (const Cell& cell : s.rings[r].cells)
        text += " " + std::to_string(cell.position) +
                (cell.state == kEmpty  ? "-"
                 : cell.state == kFull ? "full"
                                       : "busy");
      text += " positions";
      for (auto position : s.rings[r].positions) text += " " + std::to_string(position);
    }
    return text;
  }

 private:
  bool is(Broken variant) const { return shape_.broken == variant; }
  static bool lives(const Participant& p) { return p.pc != kNobody && p.pc != kKilled; }
  std::uint8_t lives_of(int i) const { return i < Writers ? 1 : shape_.reader_lives; }

  template <class Change>
  void go(const State& s, int i, Step step, Emit<State>& emit, Change change) const {
    State n = s;
    change(n, n.p[i]);
    emit(i, step, n);
  }
  // Steps that wait for their process's store buffer: read-modify-writes and full fences.
  template <class Change>
  void locked(const State& s, int i, Step step, Emit<State>& emit, Change change) const {
    if (s.p[i].buffered == 0) go(s, i, step, emit, change);
  }
  static void put(State& n, int i, Where where, int ring, int index, int a, int b = 0, int c = 0) {
    const auto byte = [](int value) { return static_cast<std::uint8_t>(value); };
    n.p[i].buffer[n.p[i].buffered++] = {where, byte(ring), byte(index), {byte(a), byte(b), byte(c)}};
  }
  static void drain(State& n, int i, Emit<State>& emit) {
    Participant& me = n.p[i];
    const Buffered store = me.buffer[0];
    std::copy(me.buffer + 1, me.buffer + me.buffered, me.buffer);
    me.buffer[--me.buffered] = {};
    Ring& ring = n.rings[store.ring];
    if (store.where != kGeneration && ring.recycled) emit.fault("I6: a store into a ring that is recycled");
    switch (store.where) {
      case kWord:
        ring.cells[store.index].position = store.value[0];
        ring.cells[store.index].state = store.value[1];
        return;
      case kBody:
        ring.cells[store.index].slot = store.value[0];
        ring.cells[store.index].generation = store.value[1];
        ring.cells[store.index].message = store.value[2];
        return;
      case kTail:
        ring.tail = store.value[0];
        return;
      case kPosition:
        ring.positions[store.index] = store.value[0];
        return;
      default:
        n.slots[store.index].generation = store.value[0];
        return;
    }
  }
  // The value that the participant itself reads back: its newest store, or memory.
  static std::uint8_t generation_of(const State& s, int i, int slot) {
    for (int b = s.p[i].buffered; b-- > 0;)
      if (s.p[i].buffer[b].where == kGeneration && s.p[i].buffer[b].index == slot) return s.p[i].buffer[b].value[0];
    return s.slots[slot].generation;
  }
  bool flies(const State& s, int i, int slot) const {
    return std::ranges::any_of(s.rings[i].sent, [&](auto sent) { return sent == slot + 1; });
  }
  static void clear(Participant& me) {
    me.pc = kIdle;
    me.slot = me.generation = me.message = me.keeps = me.scan = me.lowest = 0;
  }
  static void die(State& n, int i) {
    Participant& me = n.p[i];
    clear(me);
    me.at = me.limit = me.attached = me.away = 0;
    if (i < Writers) std::ranges::fill(n.rings[i].sent, 0);
    else me.ring = 0;
    std::ranges::fill(me.local, 0);
    std::ranges::fill(me.held, 0);
    me.pc = kKilled;
    me.repair = kD1;
  }

  void writer(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const std::uint8_t own = static_cast<std::uint8_t>(1 << i);
    const int cell = now.at % C;
    switch (now.pc) {
      case kScan: {  // W1: one reader's life and position
        const auto look = [&](State& n, Participant& me) {
          const Participant& reader = s.p[Writers + now.scan];
          const std::uint8_t position = s.rings[i].positions[now.scan];
          if (position != 0 && ((reader.state == kLive && !reader.away) || is(Broken::V25)))
            me.lowest = std::min<std::uint8_t>(me.lowest, static_cast<std::uint8_t>(position - 1));
          if (++me.scan < Readers) return;
          me.limit = static_cast<std::uint8_t>(me.lowest + C);
          for (int k = std::max(0, now.at - C); k < me.lowest; ++k) n.rings[i].sent[k % C] = 0;  // read by all
          clear(me);
        };
        if (is(Broken::no_w1_fence)) return go(s, i, Step::W1, emit, look);
        return locked(s, i, Step::W1, emit, look);
      }
      case kA2:
        return locked(s, i, Step::A2, emit, [&](State& n, Participant& me) {
          if (n.slots[now.slot].holders != 0) return clear(me);
          n.slots[now.slot].holders = own;
          me.pc = kA3;
        });
      case kA2l:
        return locked(s, i, Step::A2l, emit, [&](State& n, Participant& me) {
          if (n.slots[now.slot].holders != own) return clear(me);
          me.pc = kA3;
        });
      case kA3:
        return go(s, i, Step::A3, emit, [&](State& n, Participant& me) {
          me.generation = static_cast<std::uint8_t>(generation_of(s, i, now.slot) + 1);
          put(n, i, kGeneration, 0, now.slot, me.generation);
          me.pc = kA4;
        });
      case kA4:
        return go(s, i, Step::A4, emit, [&](State&, Participant& me) { me.pc = kW2; });
      case kW2:
        return go(s, i, is(Broken::V12_no_busy) ? Step::A4 : Step::W2, emit, [&](State& n, Participant& me) {
          if (!is(Broken::V12_no_busy)) put(n, i, kWord, i, cell, now.at, kBusy);
          n.rings[i].sent[cell] = static_cast<std::uint8_t>(now.slot + 1);
          me.pc = kW3;
        });
      case kW3:
        return go(s, i, Step::W3, emit, [&](State& n, Participant& me) {
          put(n, i, kBody, i, cell, now.slot, now.generation, now.at);
          me.pc = kW4;
        });
      case kW4:
        return go(s, i, Step::W4, emit, [&](State& n, Participant& me) {
          put(n, i, kWord, i, cell, now.at, kFull);
          me.pc = kW5;
        });
      case kW5:
        return go(s, i, Step::W5, emit, [&](State& n, Participant& me) {
          put(n, i, kTail, i, 0, ++me.at);
          clear(me);
        });
      default:
        break;
    }
    for (int slot = 0; slot < S; ++slot) {
      const std::uint8_t mask = s.slots[slot].holders;
      if (flies(s, i, slot)) continue;
      if ((mask & own) != 0)
        locked(s, i, Step::P1, emit,
               [&](State& n, Participant&) { n.slots[slot].holders &= static_cast<std::uint8_t>(~own); });
      const bool room = shape_.drop_oldest || now.at < now.limit;
      if (now.at == shape_.messages || !room || (mask != 0 && mask != own)) continue;
      go(s, i, Step::A1, emit, [&](State&, Participant& me) {
        me.slot = static_cast<std::uint8_t>(slot);
        me.pc = mask == 0 ? kA2 : shape_.drop_oldest && !is(Broken::V11) ? kA2l : kA3;
      });
    }
    if (!shape_.drop_oldest && now.at >= now.limit && now.at < shape_.messages)
      go(s, i, Step::W1, emit, [&](State&, Participant& me) {
        me.lowest = now.at;
        me.pc = kScan;
      });
    if (now.at == shape_.messages) go(s, i, Step::leave, emit, [&](State& n, Participant&) { die(n, i); });
  }

  void reader(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const int me_in_ring = i - Writers;
    const std::uint8_t own = static_cast<std::uint8_t>(1 << i);
    const auto position = [&](State& n, int value) { put(n, i, kPosition, now.ring, me_in_ring, value); };
    const auto writer_lives = [&] { return s.p[now.ring].state == kLive; };
    switch (now.pc) {
      case kJ2:
        return go(s, i, Step::J2, emit, [&](State& n, Participant& me) {
          position(n, 1);
          me.pc = kJ3;
        });
      case kJ3: {
        const auto fence = [&](State&, Participant& me) { me.pc = is(Broken::V13) ? kJ6 : kJ4; };
        if (is(Broken::no_j3)) return go(s, i, Step::J3, emit, fence);
        return locked(s, i, Step::J3, emit, fence);
      }
      case kJ4:
        return go(s, i, Step::J4, emit, [&](State&, Participant& me) {
          me.pc = !writer_lives() ? kJ5 : is(Broken::V14) ? kJ7 : kJ6;
        });
      case kJ5:
        return go(s, i, Step::J5, emit, [&](State& n, Participant& me) {
          position(n, 0);
          me.at = 0;
          me.pc = kThrough;
        });
      case kJ6:
        return go(s, i, Step::J6, emit, [&](State&, Participant& me) {
          me.at = s.rings[now.ring].tail;
          missed(s.rings[now.ring], me_in_ring, emit);
          me.pc = is(Broken::V14) ? kJ2 : kJ7;
        });
      case kJ7:
        return go(s, i, Step::J7, emit, [&](State& n, Participant& me) {
          position(n, now.at + 1);
          me.attached = 1;
          clear(me);
        });
      case kQ2:
        for (const bool keep : {false, true}) {
          if (keep ? !shape_.keeps : !shape_.borrows || shape_.drop_oldest) continue;
          go(s, i, Step::Q2, emit, [&](State& n, Participant& me) {
            const Cell& cell = s.rings[now.ring].cells[now.at % C];
            me.slot = cell.slot;
            me.generation = cell.generation;
            me.message = cell.message;
            me.keeps = keep;
            if (!shape_.drop_oldest && cell.message != now.at)
              emit.fault("I7: another message than that of the position");
            me.pc = !keep ? kQ5 : now.local[me.slot] > 0 && now.held[me.slot] == me.generation ? kQ4 : kR3;
            if (me.pc == kQ4 && !shape_.drop_oldest) accept(n, me, emit);
          });
        }
        if (shape_.expiring)  // of a copy that has passed Q4, if it needs to: done, and the application never sees it
          go(s, i, Step::Q2, emit, [&](State&, Participant& me) {
            const Cell& cell = s.rings[now.ring].cells[now.at % C];
            if (cell.state != kFull || cell.position != now.at) return clear(me);
            if (is(Broken::untold)) {
              ++me.at;
              return clear(me);
            }
            me.keeps = 2;  // neither kept nor read
            me.pc = kQ5;
          });
        return;
      case kR3:
        return locked(s, i, Step::R3, emit, [&](State& n, Participant& me) {
          n.slots[now.slot].holders |= own;
          if (shape_.drop_oldest && !is(Broken::V12_no_second_look)) me.pc = kQ4;
          else accept(n, me, emit);
        });
      case kQ4:
        return go(s, i, Step::Q4, emit, [&](State& n, Participant& me) {
          const Cell& cell = s.rings[now.ring].cells[now.at % C];
          if (cell.state == kFull && cell.position == now.at) accept(n, me, emit);
          else if (now.local[now.slot] == 0) me.pc = kR3u;
          else clear(me);
        });
      case kR3u:
        return locked(s, i, Step::R3u, emit, [&](State& n, Participant& me) {
          n.slots[now.slot].holders &= static_cast<std::uint8_t>(~own);
          clear(me);
        });
      case kQ5:
        return go(s, i, Step::Q5, emit, [&](State& n, Participant& me) {
          position(n, now.at + 2);
          ++me.at;
          clear(me);
        });
      case kL2:
        return go(s, i, Step::L2, emit, [&](State&, Participant& me) {
          const Cell& cell = s.rings[now.ring].cells[now.at % C];
          const bool something = cell.position > now.at || (cell.state == kFull && cell.position == now.at);
          clear(me);
          if (!something) me.pc = kL4;
        });
      case kL4:
        return go(s, i, Step::L4, emit, [&](State& n, Participant& me) {
          if (s.rings[now.ring].tail > now.at) emit.fault("I5: a published message was not seen");
          position(n, 0);
          me.at = me.attached = 0;
          me.pc = kThrough;
        });
      case kClose:  // behind L4: the broker takes the end away, and its places in all rings, also in those not looked
                    // at
        return locked(s, i, Step::leave, emit, [&](State& n, Participant& me) {
          close_end(n, me_in_ring);
          me.at = me.attached = me.ring = 0;
          clear(me);
          me.away = 1;
        });
      case kThrough:  // a message to the broker: a system call, so what was stored before is visible
        return locked(s, i, Step::leave, emit, [&](State& n, Participant& me) {
          n.rings[now.ring].through |= static_cast<std::uint8_t>(1 << me_in_ring);
          look_again(n);
          ++me.ring;
          clear(me);
        });
      default:
        break;
    }
    bool nothing_held = true;
    for (int slot = 0; slot < S; ++slot) {
      if (now.local[slot] == 0) continue;
      nothing_held = false;
      locked(s, i, Step::P1, emit, [&](State& n, Participant& me) {
        me.local[slot] = me.held[slot] = 0;
        n.slots[slot].holders &= static_cast<std::uint8_t>(~own);
      });
    }
    if (now.away) {
      go(s, i, Step::join, emit, [&](State& n, Participant& me) {
        me.away = 0;
        open_end(n, me_in_ring);
      });
      return;
    }
    if (s.returns > 0)
      go(s, i, now.attached ? Step::L4 : Step::leave, emit, [&](State& n, Participant& me) {
        --n.returns;
        if (now.attached) position(n, 0);
        me.pc = kClose;
      });
    if (now.ring == Writers) {
      if (nothing_held) go(s, i, Step::leave, emit, [&](State& n, Participant&) { die(n, i); });
      return;
    }
    if (!now.attached) {
      const Participant& writer = s.p[now.ring];
      if (writer.life == 0) return;  // that generation is not there yet
      return go(s, i, Step::J1, emit, [&](State&, Participant& me) {
        if (const int position = s.rings[now.ring].positions[me_in_ring];
            position != 0) {  // the broker has attached it
          me.at = static_cast<std::uint8_t>(position - 1);
          me.attached = 1;
          return;
        }
        if (!writer_lives()) missed(s.rings[now.ring], me_in_ring, emit);
        me.pc = !writer_lives() ? kThrough : is(Broken::V14) ? kJ6 : kJ2;
      });
    }
    const Ring& ring = s.rings[now.ring];
    const Cell& cell = ring.cells[now.at % C];
    if (cell.position > now.at && cell.state != kEmpty) {
      go(s, i, Step::Q1, emit, [&](State&, Participant& me) {
        if (!shape_.drop_oldest) emit.fault("I7: a message was overwritten before its reader saw it");
        if (cell.position > ring.tail) emit.fault("I7: an honest writer looks like a broken lane");
        me.at = static_cast<std::uint8_t>(std::max(now.at + 1, cell.position - C + 1));
      });
    } else if (cell.state == kFull && cell.position == now.at) {
      go(s, i, Step::Q1, emit, [&](State&, Participant& me) { me.pc = kQ2; });
    } else if (!writer_lives()) {
      go(s, i, Step::L1, emit, [&](State&, Participant& me) { me.pc = kL2; });
    }
  }
  static void missed(const Ring& ring, int reader, Emit<State>& emit) {
    if ((ring.early & 1 << reader) != 0 && ring.tail > 0) emit.fault("I5: a message after its opening was not seen");
  }
  // The reader believes the message and has the slot.
  static void accept(State&, Participant& me, Emit<State>& emit) {
    if (me.message != me.at) emit.fault("I7: another message than that of the position");
    me.local[me.slot] = 1;
    me.held[me.slot] = me.generation;
    me.pc = kQ5;
  }

  void look_again(State& n) const {
    for (Participant& p : n.p)
      if (p.repair != kNone && p.repair != kD1) p.again = 1;
  }
  // It can attach to rings of living writers only.
  static void open_end(State& n, int reader) {
    for (int w = 0; w < Writers; ++w) {
      Ring& ring = n.rings[w];
      const std::uint8_t bit = static_cast<std::uint8_t>(1 << reader);
      ring.early &= static_cast<std::uint8_t>(~bit);
      const bool gone = n.p[w].life != 0 && n.p[w].state != kLive;
      if (!ring.recycled) ring.through = static_cast<std::uint8_t>(gone ? ring.through | bit : ring.through & ~bit);
    }
  }
  // In one request, as the broker serves it.
  void close_end(State& n, int reader) const {
    for (Ring& ring : n.rings) {
      if (ring.recycled) continue;
      if (!is(Broken::positions_outlive_ends)) ring.positions[reader] = 0;
      ring.through &= static_cast<std::uint8_t>(~(1 << reader));
      ring.early &= static_cast<std::uint8_t>(~(1 << reader));
    }
    look_again(n);
  }
  bool recycles(const State& s, int w) const {
    if (s.p[w].life == 0 || s.p[w].state == kLive) return false;
    for (int r = 0; r < Readers; ++r) {
      if (s.p[Writers + r].state != kLive || s.p[Writers + r].away) continue;
      const bool through = (s.rings[w].through & 1 << r) != 0;
      if (is(Broken::recycled_by_positions) ? s.rings[w].positions[r] != 0 : !through) return false;
    }
    return true;
  }

  void repair(const State& s, int i, Emit<State>& emit) const {
    const Participant& now = s.p[i];
    const auto step = [&](Step name, auto change) {
      State n = s;
      change(n, n.p[i]);
      emit(-1, name, n);
    };
    const auto next = [](Participant& me, Repair repair) {
      me.repair = repair;
      me.repair_at = 0;
    };
    switch (now.repair) {
      case kD1:
        if (now.buffered > 0) return;  // the process is gone when its stores are out
        return step(Step::D1, [&](State& n, Participant& me) {
          me.state = kDead;
          look_again(n);
          next(me, i < Writers ? kD3 : kD2);
        });
      case kD2:  // a dead reader's positions
        for (int w = now.repair_at; w < Writers; ++w) {
          if (s.rings[w].recycled || s.rings[w].positions[i - Writers] == 0 || is(Broken::V25)) continue;
          return step(Step::D2, [&](State& n, Participant& me) {
            n.rings[w].positions[i - Writers] = 0;
            me.repair_at = static_cast<std::uint8_t>(w + 1);
          });
        }
        return step(Step::D2, [&](State&, Participant& me) { next(me, kD4); });
      case kD3:  // is anybody attached?
        return step(Step::D3, [&](State&, Participant& me) {
          const int r = now.repair_at;
          if (s.p[Writers + r].state == kLive && !s.p[Writers + r].away && s.rings[i].positions[r] != 0 &&
              !s.rings[i].recycled)
            return next(me, kD3cells);
          if (++me.repair_at == Readers) next(me, kD4);
        });
      case kD3cells:
        return step(Step::D3, [&](State&, Participant& me) {
          const Cell& cell = s.rings[i].cells[now.repair_at];
          if (cell.state == kFull) me.keep |= static_cast<std::uint8_t>(1 << cell.slot);
          if (++me.repair_at == C) next(me, kD4);
        });
      case kD4:
        for (int slot = now.repair_at; slot < S; ++slot) {
          if ((now.keep & 1 << slot) != 0 || (s.slots[slot].holders & 1 << i) == 0) continue;
          return step(Step::D4, [&](State& n, Participant& me) {
            n.slots[slot].holders &= static_cast<std::uint8_t>(~(1 << i));
            me.repair_at = static_cast<std::uint8_t>(slot + 1);
          });
        }
        return step(Step::D5, [&](State&, Participant& me) { next(me, kD6); });
      case kD6:
        return step(Step::D6, [&](State&, Participant& me) {
          if (me.keep != 0) return next(me, kWaiting);
          me.state = kFree;
          me.pc = kNobody;
          me.again = 0;
          next(me, kNone);
        });
      case kWaiting:
        if (now.again == 0) return;
        return step(Step::D6, [&](State&, Participant& me) {
          me.again = me.keep = 0;
          next(me, kD3);
        });
      default:
        return;
    }
  }

  void broker(const State& s, Emit<State>& emit) const {
    for (int i = 0; i < P; ++i) {
      if (s.p[i].state != kFree || s.p[i].life == lives_of(i)) continue;
      if (i > 0 && i < Writers && (s.p[i - 1].life == 0 || s.p[i - 1].state == kLive)) continue;  // one after the other
      State n = s;
      ++n.p[i].life;
      n.p[i].state = kLive;
      n.p[i].pc = kIdle;
      for (int r = 0; r < Readers && i < Writers; ++r) {
        if (s.p[Writers + r].state != kLive || s.p[Writers + r].away) continue;
        n.rings[i].early |= static_cast<std::uint8_t>(1 << r);
        if (!is(Broken::late_readers)) n.rings[i].positions[r] = 1;
      }
      if (i >= Writers) open_end(n, i - Writers);
      emit(-1, Step::join, n);
    }
    for (int w = 0; w < Writers; ++w) {
      if (s.rings[w].recycled || !recycles(s, w)) continue;
      State n = s;
      n.rings[w] = Ring{};
      n.rings[w].recycled = 1;
      look_again(n);
      emit(-1, Step::D7, n);
    }
  }

  Shape shape_;
};

template <int Writers, int Readers, int S, int C>
void add(std::vector<Instance>& all, std::string variant, std::string name, Shape shape, bool liveness = false,
         bool large = false) {
  all.push_back(
      instance(std::move(variant), std::move(name), Broadcast<Writers, Readers, S, C>(shape), liveness, large));
}

}  // namespace

void add_broadcasts(std::vector<Instance>& all) {
  add<1, 1, 2, 1>(all, "", "broadcast block, TSO: reader x 2 lives, 3 messages, 2 kills",
                  {.messages = 3, .kills = 2, .reader_lives = 2}, true);
  add<2, 1, 2, 1>(all, "", "broadcast block, TSO: writer and successor, 2 messages each, borrowed, 1 kill",
                  {.messages = 2, .kills = 1, .keeps = false}, true);
  add<2, 1, 2, 1>(all, "", "broadcast block, TSO: writer and successor, 2 messages each, 1 kill",
                  {.messages = 2, .kills = 1}, true, true);
  add<1, 2, 2, 1>(all, "", "broadcast block, TSO: 2 readers, 2 messages, borrowed, 1 kill",
                  {.messages = 2, .kills = 1, .keeps = false}, true);
  add<1, 1, 2, 1>(all, "", "broadcast drop-oldest, TSO: reader x 2 lives, 3 messages, 1 cell, 2 kills",
                  {.messages = 3, .kills = 2, .reader_lives = 2, .drop_oldest = true}, true);
  add<2, 1, 2, 1>(all, "", "broadcast drop-oldest, TSO: writer and successor, 2 messages each, 1 kill",
                  {.messages = 2, .kills = 1, .drop_oldest = true}, true);
  add<1, 1, 2, 1>(all, "", "broadcast block, expiring, TSO: reader x 2 lives, 3 messages, 2 kills",
                  {.messages = 3, .kills = 2, .reader_lives = 2, .expiring = true}, true);
  add<1, 1, 2, 1>(all, "", "broadcast drop-oldest, expiring, TSO: reader x 2 lives, 3 messages, 1 kill",
                  {.messages = 3, .kills = 1, .reader_lives = 2, .drop_oldest = true, .expiring = true}, true);
  add<2, 1, 2, 1>(all, "",
                  "broadcast block, TSO: a reader that closes its end and comes back twice, writer and successor",
                  {.messages = 2, .keeps = false, .returns = 2}, true);
  add<2, 1, 2, 1>(all, "", "broadcast block, TSO: a reader that comes back, writer and successor, 1 kill",
                  {.messages = 2, .kills = 1, .keeps = false, .returns = 1}, true, true);
  add<1, 1, 2, 1>(all, "", "broadcast drop-oldest, TSO: a reader that comes back, reader x 2 lives, 3 messages, 1 kill",
                  {.messages = 3, .kills = 1, .reader_lives = 2, .drop_oldest = true, .returns = 1}, true);
  add<1, 1, 3, 2>(all, "", "broadcast block, TSO: reader x 2 lives, 4 messages, 2 cells, 2 kills",
                  {.messages = 4, .kills = 2, .reader_lives = 2}, true, true);
  add<1, 2, 2, 1>(all, "", "broadcast block, TSO: 2 readers, 3 messages, 1 kill", {.messages = 3, .kills = 1}, true,
                  true);
  add<2, 1, 2, 1>(all, "", "broadcast block, TSO: writer and successor, reader x 2 lives, borrowed, 2 kills",
                  {.messages = 2, .kills = 2, .reader_lives = 2, .keeps = false}, false, true);
  add<2, 1, 2, 1>(all, "", "broadcast drop-oldest, TSO: writer and successor, reader x 2 lives, 2 kills",
                  {.messages = 2, .kills = 2, .reader_lives = 2, .drop_oldest = true}, false, true);
  add<1, 2, 2, 1>(all, "", "broadcast drop-oldest, TSO: 2 readers, 3 messages", {.messages = 3, .drop_oldest = true},
                  true, true);

  const std::string block = "broadcast block, TSO", oldest = "broadcast drop-oldest, TSO";
  add<1, 1, 2, 1>(all, "V11", oldest, {.messages = 3, .drop_oldest = true, .broken = Broken::V11});
  add<1, 1, 2, 1>(all, "V12", oldest + ": no second look",
                  {.messages = 3, .drop_oldest = true, .broken = Broken::V12_no_second_look});
  add<1, 1, 2, 1>(all, "V12", oldest + ": no busy mark",
                  {.messages = 3, .drop_oldest = true, .broken = Broken::V12_no_busy});
  add<2, 1, 2, 1>(all, "V13", block, {.messages = 2, .kills = 1, .broken = Broken::V13});
  add<1, 1, 2, 1>(all, "V14", block, {.messages = 3, .broken = Broken::V14});
  add<1, 1, 2, 1>(all, "V25", block, {.messages = 3, .kills = 1, .broken = Broken::V25});
  add<1, 1, 2, 1>(all, "M3", block + ": no fence J3", {.messages = 3, .kills = 1, .broken = Broken::no_j3});
  add<1, 1, 2, 1>(all, "M4", block + ": no fence W1", {.messages = 3, .kills = 1, .broken = Broken::no_w1_fence});
  add<1, 1, 2, 1>(all, "M5", block + ": recycled when no position is set, readers not asked",
                  {.messages = 1, .kills = 1, .broken = Broken::recycled_by_positions});
  add<1, 1, 2, 1>(all, "M12", block + ": what is too old is passed over without Q5",
                  {.messages = 3, .expiring = true, .broken = Broken::untold});
  add<1, 1, 2, 1>(all, "M13", block + ": a closed end leaves its places in rings that it has not looked at",
                  {.messages = 2, .returns = 1, .broken = Broken::positions_outlive_ends});
  add<1, 1, 2, 1>(all, "M9", block + ": readers that were there attach themselves",
                  {.messages = 2, .broken = Broken::late_readers});
}
}  // namespace shmb::model
