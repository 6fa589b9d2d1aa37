// SPDX-License-Identifier: Apache-2.0
// Data goes both ways through the region: the writer fills it, and each reader writes its checksum into its own place.
// Only "now" and "done" go over the sockets. The broker's books show the deaths, not this program's.
#include <unistd.h>

#include <cstdio>
#include <shmbroker/shmbroker.hpp>
#include <span>
#include <vector>

#include "parts.hpp"
#include "worker.hpp"

namespace main_job {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSize = 64ULL << 20;
constexpr std::size_t kHeader = 512;  // words; the first ones are the readers' answers
constexpr const char* kAddress = "exchange/numbers";

std::uint64_t fill(std::span<std::uint64_t> words, std::uint64_t seed) {
  std::uint64_t sum = 0;
  for (std::uint64_t& word : words) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;  // xorshift64
    word = seed;
    sum += seed;
  }
  return sum;
}

std::uint64_t sum_of(std::span<const std::uint64_t> words) {
  std::uint64_t sum = 0;
  for (std::uint64_t word : words) sum += word;
  return sum;
}

void write(Line parent) {
  auto session = shmbroker::Session::connect({.program = "writer", .start = false});
  session.join(session.create_group({.name = "exchange"}).token);
  const auto region = session.create(kSize, {.name = "numbers"});
  parent.say(0);
  const auto words = region.as_span<std::uint64_t>();
  for (;;) parent.say(fill(words.subspan(kHeader), parent.hear()));
}

void read(Line parent, std::size_t slot) {
  auto session = shmbroker::Session::connect({.program = "reader", .start = false});
  session.join("exchange");
  const auto region = session.attach_writable(kAddress);
  parent.say(0);
  const auto words = region.as_span<std::uint64_t>();
  for (;;) {
    if (parent.hear() == 0) return;
    words[slot] = sum_of(words.subspan(kHeader));
    parent.say(0);
  }
}

struct Party {
  Worker writer;
  std::vector<Worker> readers;
  std::vector<std::size_t> alive{0, 1, 2};
};

// The readers' answers as the writer's memory shows them, read through a mapping of the header.
void round(const Party& party, const shmbroker::Region& view, std::uint64_t seed) {
  const std::uint64_t sum = party.writer.ask(seed);
  for (std::size_t i : party.alive) (void)party.readers[i].ask(1);
  for (std::size_t i : party.alive)
    require(view.as_span<std::uint64_t>()[i] == sum, "reader " + std::to_string(i + 1) + " saw something else");
}

void wait_for_holders(const shmbroker::Session& session, std::uint32_t count) {
  std::uint32_t holders = 0;
  for (int i = 0; i < 500; ++i) {
    holders = session.stat(kAddress).holders;
    if (holders == count) return;
    ::usleep(10'000);
  }
  throw std::runtime_error("the broker counts " + std::to_string(holders) + " holders, not " + std::to_string(count));
}

}  // namespace

void exchange() {
  Party party{Worker::start("writer", write), {}};
  (void)party.writer.line().hear();
  for (std::size_t i = 0; i < 3; ++i)
    party.readers.push_back(Worker::start("reader", [i](Line parent) { read(parent, i); }));
  for (Worker& reader : party.readers) (void)reader.line().hear();
  auto session = shmbroker::Session::connect({.program = "main job", .start = false});
  std::optional<shmbroker::Region> view(session.attach_writable(kAddress));
  for (std::uint64_t seed = 1; seed <= 4; ++seed) round(party, *view, seed);
  std::printf("4 rounds of %s written, summed up by 3 readers and answered in place\n", mebibytes(kSize).c_str());

  party.readers[0].kill();
  party.alive = {1, 2};
  wait_for_holders(session, 4);
  for (std::uint64_t seed = 5; seed <= 6; ++seed) round(party, *view, seed);
  std::printf("reader 1 killed: its reference is gone, 2 more rounds with the others\n");

  const std::uint64_t last = party.writer.ask(7);
  party.writer.kill();
  wait_for_holders(session, 3);
  for (std::size_t i : party.alive) (void)party.readers[i].ask(1);
  for (std::size_t i : party.alive) require(view->as_span<std::uint64_t>()[i] == last, "the last round was lost");
  std::printf("writer killed: its last %s are whole, the two readers that are left read on\n",
              mebibytes(kSize).c_str());

  view.reset();
  for (std::size_t i : party.alive) {
    party.readers[i].line().say(0);
    require(party.readers[i].finish(), "a reader failed");
  }
  for (int i = 0; i < 500; ++i) {
    const auto stat = session.try_stat(kAddress);
    if (!stat && stat.error().status() == shmbroker::Status::not_found) return;
    ::usleep(10'000);
  }
  throw std::runtime_error("the region outlived its group");
}

}  // namespace main_job
