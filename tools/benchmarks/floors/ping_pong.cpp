// SPDX-License-Identifier: Apache-2.0
// See ping_pong.hpp.
#include "tools/benchmarks/floors/ping_pong.hpp"

#include <errno.h>

namespace shmb::bench {

void wrong_answer() {
  errno = 0;
  give_up("another number came back than was sent");
}

PingPong::PingPong(std::vector<NamedWay> ways, Core client, Core server) : ways_(std::move(ways)) {
  crew_.add(client, [&](int socket) { this->client(socket); });
  crew_.add(server, [&](int socket) { this->server(socket); });
  for (std::uint32_t way = 0; way < ways_.size(); ++way) {
    Command command{1, way, 0, 0, 0, 0};
    crew_.tell(0, command);
    command.from_client = crew_.hear<std::uint64_t>(0);
    crew_.tell(1, command);
    crew_.hear<std::uint64_t>(1);
  }
}

void PingPong::client(int socket) {
  for (;;) {
    auto command = hear<Command>(socket);
    Way& way = *ways_[command.way].way;
    if (command.enter != 0) {
      tell(socket, way.enter(End::client, 0));
      continue;
    }
    Samples stretches, each;
    way.ask(command.in_each);  // warm
    for (std::uint32_t i = 0; i < command.stretches; ++i)
      stretches.add(timed([&] { way.ask(command.in_each); }) / command.in_each / 2);
    way.ask_each(command.timed_ones, each);
    tell(socket, Times{stretches.median(), each.percentile(0.5) / 2, each.percentile(0.99) / 2,
                       each.percentile(0.999) / 2, each.percentile(0.9999) / 2});
  }
}

void PingPong::server(int socket) {
  for (;;) {
    auto command = hear<Command>(socket);
    Way& way = *ways_[command.way].way;
    std::uint64_t done = 0;
    if (command.enter != 0) done = way.enter(End::server, command.from_client);
    else way.answer(command.in_each * (1 + command.stretches) + command.timed_ones);
    tell(socket, done);
  }
}

PingPong::Times PingPong::run(std::size_t way, std::uint32_t stretches, std::uint32_t in_each,
                              std::uint32_t timed_ones) {
  Command command{0, static_cast<std::uint32_t>(way), 0, stretches, in_each, timed_ones};
  crew_.tell(1, command);
  crew_.tell(0, command);
  auto times = crew_.hear<Times>(0);
  crew_.hear<std::uint64_t>(1);
  return times;
}

}  // namespace shmb::bench
