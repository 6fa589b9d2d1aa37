// SPDX-License-Identifier: Apache-2.0
// A small world in which every request of the protocol has a valid form that succeeds. A parent session has a named
// group and a named region. The attacker is its forked child by HELLO, with a lease, a ticket and a watch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/wire.hpp"

namespace wire_test {

struct Stage {
  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  // A ticket would hold its region, and that its group, after both sessions are gone.
  ~Stage();

  std::string socket;
  RawClient parent, attacker;
  shmbw_hello_reply parent_hello{}, attacker_hello{};
  std::uint64_t group = 0, watch = 0;
  std::uint8_t token[16]{}, ticket[16]{};
  std::string group_name;
  shmbw_region_ref region{};
  std::uint64_t pool = 0;  // of the parent; the attacker is a participant, too
  std::uint32_t parent_place = 0, parent_life = 0;
  shmbw_region_ref slots{};
  shmbw_queue_open_reply queue{};  // an mpmc queue, both ends the attacker's
  std::uint32_t port = 0;
  std::uint64_t world = 0;  // both are workers of it: the parent rank 0, the attacker rank 1
  shmbw_ref_id reference{}, own_fork{},
      sent{};                      // made by the attacker, owned by the parent; and a fork to the attacker
  shmbw_region_ref gpu{}, lent{};  // of the parent, with a lease of the attacker's; of the attacker's own, kind legacy
  shmbw_region_ref part{};         // of the attacker's own: the first of two chunks

  void want_world() { with_world_ = true; }

  // "" or what did not work.
  std::string set_parent(const std::string& socket_path, bool with_ticket, bool with_pool, bool with_gpu);
  std::string set_attacker(bool greet);  // false: it has only connected

 private:
  std::string set_pool();
  std::string join_pool();
  std::string join_world();
  bool with_world_ = false;
  std::string set_gpu();
  std::string open_gpu();
  bool with_gpu_ = false;
};

// One valid request, as bytes that fit the stage it is made for.
struct Valid {
  std::string name;
  bool is_hello = false, wants_ticket = false, wants_pool = false, wants_world = false;
  std::function<Packet(const Stage&, std::uint64_t tag)> make;
  bool wants_gpu = false;
  std::function<std::vector<shmb::Fd>()> bring = {};  // descriptors that the packet states
};
// Every request of the tables in proto/, those with several meanings in each of them.
const std::vector<Valid>& all_valid();  // but those of pools, of worlds and of GPU memory
const std::vector<Valid>& all_valid_of_pools();
const std::vector<Valid>& all_valid_of_worlds();
// A join that completes or begins the world at that port.
Packet join_of_world(std::uint64_t tag, std::uint32_t port, std::uint32_t rank, std::uint32_t size);
const std::vector<Valid>& all_valid_of_gpu();

// Files that stand for those of a GPU's driver, for a broker with the seam's instruction gpu=DIR.
inline constexpr std::uint8_t kGpuUuid[16] = {0xc0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
void make_gpu_files(const std::string& folder);
// One chunk as the driver exports it: keeper and share. Empty: the machine would not.
std::vector<shmb::Fd> gpu_export();
// The packet with so many descriptors in its header.
Packet stating(Packet packet, std::size_t count);
// Names the GPU and waits until its node is held: "" or what did not work.
std::string name_gpu(RawClient& client);
shmbw_gpu_publish gpu_publication(shmbw_gpu_kind kind);

// Plays packets against a stage, one after the other, and restores the parts that a case has changed.
class Duel {
 public:
  Duel(const BrokerFixture& broker, const Valid& valid) : broker_(broker), valid_(valid) {}

  enum class End { none, answered, refused, silent, dropped };
  // `change` makes the case of the valid packet; false: there is no such case. The end, or none and `wrong` says why.
  template <class Change>
  End play(Change&& change) {
    if (!ready()) return End::none;
    Packet packet = valid_.make(*stage_, kTag);
    if (!change(packet, *stage_)) return End::none;
    return send(packet);
  }
  bool failed() const { return !wrong.empty(); }
  std::string wrong;
  long cases = 0, drops = 0, answers = 0, refusals = 0;

  static constexpr std::uint64_t kTag = 0x0011'2233'4455'6677, kPing = 0xfedc'ba98'7654'3210;

 private:
  bool ready();
  void renew_attacker() { stage_->attacker.close(); }
  End send(const Packet& packet);
  End dropped(const Packet& packet, bool due);

  const BrokerFixture& broker_;
  const Valid& valid_;
  std::unique_ptr<Stage> stage_;
  std::vector<shmb::Fd> brought_;
};

}  // namespace wire_test
