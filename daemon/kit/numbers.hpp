// SPDX-License-Identifier: Apache-2.0
// The numbers of one session's packets, with the feature RESUME: which packet is served next, and which ones are not
// served a second time.
//
// A client sends packets 1, 2, 3, ... After the death of a broker it sends again all that may be missing, in order. So
// the next broker sees packets that were served, and perhaps packets before which one is missing. Only the packet after
// the last one that was served is served. A rule "any greater number" would lose a packet that the dead broker had read
// while later ones were queued.
//
// One answer is stored, because a session has one unread answer at most. A broker that has taken over does not know
// whether its client has that answer. So it serves no request that has an answer, which would take the place of the
// stored one. The client shows that it has it by the first packet that it sends after RESUME: there the flag `resumed`
// stands, and it has the answers to all packets before. Otherwise that first packet is the one whose answer is missing.
// One-way messages are served meanwhile: their sender may never call again.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shmb::daemon {

struct Numbers {
  bool on = false;             // the session's HELLO has asked for them
  std::uint64_t served = 0;    // the last packet
  std::uint64_t answered = 0;  // the last of these that has an answer
  bool unsure = false;         // whether the client has that answer

  // next: to be served. repeated: its answer may be missing, and none was due since. over: it was served, and its
  // answer was read or it has none. early: it comes again, because another one comes before it.
  enum class Due : std::uint8_t { next, repeated, over, early };
  struct Packet {
    std::uint64_t number = 0;
    bool has_answer = true, resumed = false;
  };
  Due due(const Packet& packet) {
    if (!on) return Due::next;
    if (packet.resumed && packet.number > answered) unsure = false;
    if (packet.number > served + 1) return Due::early;
    if (packet.number == served + 1) return unsure && packet.has_answer ? Due::early : Due::next;
    if (packet.number != answered) return Due::over;
    unsure = false;  // its answer is sent now
    return Due::repeated;
  }
  // Whether that changes something.
  bool serve(std::uint64_t number, bool has_answer) {
    const bool news = on && (number > served || (has_answer && number > answered));
    if (!news) return false;
    served = std::max(served, number);
    if (has_answer) answered = std::max(answered, number);
    return true;
  }
  void take_over() { unsure = true; }
};

}  // namespace shmb::daemon
