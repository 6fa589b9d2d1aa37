// SPDX-License-Identifier: Apache-2.0
// The ways a message of `bytes` goes from process to process, to be measured with ping_pong.hpp: the library's queues,
// their floors, and what else a program could use. Each has a form that spins and one whose reader sleeps.
// hop_figure.cpp measures three of them in one run.
#pragma once

#include <cstddef>
#include <string>

#include "tools/benchmarks/floors/ping_pong.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/figure.hpp"

namespace shmb::bench {

// hop_library.cpp
NamedWay inline_hop(const std::string& socket, bool asleep);  // 56 bytes
NamedWay usual_hop(const std::string& socket);                // 56 bytes, with the options that nobody has set
NamedWay slot_hop(const std::string& socket, std::size_t bytes, bool asleep);   // written beforehand, but for a number
NamedWay claim_hop(const std::string& socket, std::size_t bytes, bool asleep);  // the same through mpmc queues

// hop_doorbell.cpp: 56 bytes to a process that sleeps in poll(2)
NamedWay doorbell_hop(const std::string& socket, bool by_the_broker);
NamedWay bare_bell();  // a byte through a socket

// hop_floors.cpp, raw calls: no books, no checks
NamedWay bare_line();   // two cache lines, both ends looking
NamedWay bare_futex();  // the same, both ends asleep

// hop_peers.cpp: all but iceoryx copy the message
NamedWay posix_mqueue(std::size_t bytes, bool asleep);
bool posix_mqueue_takes(std::size_t bytes);
NamedWay bare_pipe(std::size_t bytes, bool asleep);
bool pipe_takes(std::size_t bytes);
NamedWay unix_seqpacket(std::size_t bytes, bool asleep);
#ifdef SHMB_HAVE_BOOST
NamedWay boost_queue(std::size_t bytes, bool asleep);
#endif

// hop_figure.cpp: half of a round trip of `way`, in us, against `floor`. The record has `beside` under its name.
struct HopFigure {
  std::string name;
  NamedWay way, floor, beside;
  std::uint32_t in_each = 1000, timed_ones = 2000;  // round trips in each of 20 stretches, and timed one by one
  std::uint32_t beside_part = 1;                    // `beside` makes one in so many of each number
  Target target{};
  Core client = Core::client, server = Core::server;
};
void record_hop(Bench& bench, const BrokerProcess& broker, HopFigure figure);

}  // namespace shmb::bench
