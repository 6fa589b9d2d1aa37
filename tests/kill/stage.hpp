// SPDX-License-Identifier: Apache-2.0
// A pool with survivors, in which one operation after the other is cut short by a death at each of its steps. After
// each death everything is looked at: the directory, every mask, every lane, the broker's lists and books, and what
// the survivors get; then they exchange their next messages in the same queue.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/session/views.hpp"
#include "tests/kill/actor.hpp"

namespace kill_tests {

bool all_points();  // --all: every point in every way of dying
bool only_some();   // options that leave cases out

// How a victim ends, and what happens meanwhile.
enum class Way : std::uint8_t {
  dies,            // at once
  stopped,         // first; the others go on; then killed
  broker_stopped,  // while it dies; the others go on; then the broker goes on
  newcomer         // takes its place while its messages are unread
};
inline constexpr unsigned kWays = 4;
const char* name_of(Way way);

// The messages that survivors took out of a queue.
struct Taken {
  std::vector<std::uint64_t> ids;
  unsigned torn = 0, gone = 0;  // damaged ones; how often a peer's end was told
};

// The queue of a stage.
inline QueueSpec one_queue(Kind kind, std::uint32_t cells, std::uint32_t flags = 0) {
  QueueSpec spec = queue_spec("q", kind, false, false, cells);
  spec.flags = flags;
  return spec;
}

class Stage {
 public:
  explicit Stage(QueueSpec queue, std::uint32_t slots = 32);
  ~Stage();

  QueueSpec reads() const { return role(true, false); }
  QueueSpec writes() const { return role(false, true); }
  Taken take_all(Queue& queue, std::size_t most = SIZE_MAX);
  // Messages that a dead consumer had claimed come back when the broker's repair, which goes on in turns, is there.
  Taken take_expected(Queue& from, std::size_t count);
  void send_some(Queue& queue, std::uint64_t first, unsigned count);  // inline ones and slots, in turn
  // Messages that survivors exchange in the queue; ends that they have not are opened meanwhile.
  void exchange(unsigned count);
  void exchange_beside(unsigned count);  // in a queue that no victim knows, without the broker
  void use_all_free_slots();             // and write into them
  void newcomer();                       // joins, uses slots, and goes

  // The state that must be the same before and after, in words.
  std::string state();
  void take_rest();  // the state that must come back, from now on
  void expect_rest();
  void expect_gone();                    // no session and no live participant but those of take_rest
  void expect_bits(const Actor& actor);  // of a dead one: just those that its unread messages need
  bool eventually(const std::function<bool()>& holds) const;

  BrokerFixture broker;
  std::shared_ptr<Session> ann_session, bob_session, admin;
  std::shared_ptr<Pool> ann, bob;
  std::unique_ptr<Queue> in, out;  // survivors' own ends of the queue: Ann reads, Bob writes. Or none
  Queue* also_reads = nullptr;     // another reader of a broadcast, who gets all of it as well
  QueueSpec queue;
  std::uint64_t trial = 0;  // part of each id
  std::uint64_t live = 0;   // participants that stay, a bit each

  std::uint64_t id(std::uint64_t source, std::uint64_t number) const { return trial << 24 | source << 16 | number; }

 private:
  QueueSpec role(bool reader, bool writer) const;
  void settle_survivors();

  std::unique_ptr<Queue> side_in_, side_out_;
  std::string rest_;
  std::size_t sessions_ = 0;
  std::uint64_t sequence_ = 0;
};

// The messages of a victim while Ann read, and the rest after its death: all of them, in order, and no others.
struct Arrived {
  std::vector<std::uint64_t> ids;
  void take(Stage& stage, std::size_t most = SIZE_MAX);
  void check(Stage& stage, const Actor& actor);
};

// One operation, and what must be true after it was cut short.
struct Operation {
  const char* name;
  std::function<void(Self&)> body;                                  // in the victim, joined already unless `joins`
  std::function<void(Stage&, std::uint32_t)> on_ask = {};           // in the parent
  std::function<void(Stage&, const Actor&, bool died)> after = {};  // takes what is left and checks it
  std::function<void(Stage&)> before = {};
  std::function<void()> clear = {};  // right after its death: whom only this trial needed goes too
  bool exchanges = true;
};
void cut_short(Stage& stage, const Operation& operation);
// Lets it serve the victim's requests until it has ended or stopped itself.
enum class End : std::uint8_t { ended, stopped };
End serve(Stage& stage, Actor& actor, Child& child, const std::function<void(Stage&, std::uint32_t)>& on_ask);

// Of all operations in this run.
struct Reached {
  std::array<std::uint64_t, kSteps> passed{}, killed{};
  std::uint64_t points = 0, deaths = 0, operations = 0;
};
Reached& reached();
void note(const Actor& actor, bool died);

}  // namespace kill_tests
