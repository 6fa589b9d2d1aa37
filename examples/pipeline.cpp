// SPDX-License-Identifier: Apache-2.0
// Files through a pipeline: one process reads them in blocks, workers pack the blocks, this one unpacks and checks
// them. Workers are killed at random meanwhile. The queue to the workers delivers at least once: a block is done when
// its worker says so. If a worker dies first, another one gets the block. So nothing is lost. A block that comes twice
// is noticed by its number. The checksum at the end is that of the files.
//
//     pipeline [--kills N] [--most MEBIBYTES] [--seed N] [FILE or DIRECTORY]...
//
//     g++ -std=c++20 -O2 pipeline.cpp -o pipeline -pthread $(pkg-config --cflags --libs shmbroker)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <shmbroker/pool.hpp>
#include <string>
#include <thread>
#include <vector>

#include "child.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBlock = 1 << 20;
constexpr std::size_t kPackedBlock = kBlock + kBlock / 128 + 1;  // where nothing in it repeats
constexpr int kWorkers = 3;
constexpr std::uint32_t kRawCells = 16, kPackedCells = 4;  // messages under way, of each sender

// A slot holds this, then the bytes of the block, packed or as they are in the file.
struct Block {
  std::uint32_t file, number;
  std::uint32_t bytes;  // of the file
  std::uint32_t packed;
};

// ------------------------------------------------------------------ packing

// Runs of equal bytes become a count and the byte (PackBits). 0..127 stands before 1..128 bytes as they are; 129..255
// stands before a byte that comes 2..128 times.
std::size_t pack(const std::uint8_t* from, std::size_t size, std::uint8_t* to) {
  std::uint8_t* const begin = to;
  for (std::size_t i = 0; i < size;) {
    std::size_t run = 1;
    while (run < 128 && i + run < size && from[i + run] == from[i]) ++run;
    if (run >= 2) {
      *to++ = static_cast<std::uint8_t>(257 - run);
      *to++ = from[i];
      i += run;
      continue;
    }
    std::size_t end = i + 1;  // up to the next run, which is worth it from 3 on
    while (end < size && end - i < 128 && !(end + 2 < size && from[end] == from[end + 1] && from[end] == from[end + 2]))
      ++end;
    *to++ = static_cast<std::uint8_t>(end - i - 1);
    std::memcpy(to, from + i, end - i);
    to += end - i;
    i = end;
  }
  return static_cast<std::size_t>(to - begin);
}

// False: this cannot be what pack has made.
bool unpack(const std::uint8_t* from, std::size_t size, std::vector<std::uint8_t>& to) {
  to.clear();
  for (std::size_t i = 0; i < size;) {
    const std::size_t head = from[i++];
    if (head > 128) {
      if (i == size) return false;
      to.insert(to.end(), 257 - head, from[i++]);
    } else {
      if (size - i < head + 1) return false;
      to.insert(to.end(), from + i, from + i + head + 1);
      i += head + 1;
    }
  }
  return true;
}

std::uint64_t checksum(const std::uint8_t* bytes, std::size_t size) {
  std::uint64_t sum = size;
  for (; size >= 8; bytes += 8, size -= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    sum = sum * 31 + word;
  }
  for (; size > 0; ++bytes, --size) sum = sum * 31 + *bytes;
  return sum;
}

// ------------------------------------------------------------------ what all processes share

struct Works {
  shmbroker::Session session;
  shmbroker::Pool pool;
};

constexpr const char* kGroup = "pipeline";

Works enter(const char* program) {
  auto session = shmbroker::Session::connect({.program = program, .start = false});
  session.join(kGroup);
  auto pool = shmbroker::Pool::open(session, "blocks");
  return {std::move(session), std::move(pool)};
}

shmbroker::Result<shmbroker::Queue> open_raw(const shmbroker::Pool& pool, shmbroker::Role role) {
  return pool.try_open_queue("raw", role,
                             {.kind = shmbroker::QueueKind::mpmc, .cells = kRawCells, .at_least_once = true});
}
shmbroker::Queue open_packed(const shmbroker::Pool& pool, shmbroker::Role role) {
  return pool.open_queue("packed", role, {.kind = shmbroker::QueueKind::mpmc, .cells = kPackedCells});
}

// Repeats a call while workers die and come back.
template <class Call>
auto whoever_dies(Call&& call) {
  for (;;) {
    auto outcome = call();
    if (outcome || outcome.error().status() != shmbroker::Status::peer_gone) return outcome;
  }
}

// ------------------------------------------------------------------ the roles

// Reads the files, each block straight into a slot, and leaves when the workers are through with all of them.
void reader(const std::vector<std::string>& files) {
  const Works works = enter("pipeline reader");
  auto raw = open_raw(works.pool, shmbroker::Role::writer).value();
  for (std::uint32_t file = 0; file < files.size(); ++file) {
    std::ifstream in(files[file], std::ios::binary);
    for (std::uint32_t number = 0;; ++number) {
      auto slot = works.pool.acquire(sizeof(Block) + kBlock, shmbroker::Timeout::forever());
      in.read(reinterpret_cast<char*>(slot.data() + sizeof(Block)), kBlock);
      if (in.gcount() == 0) break;
      const Block head{file, number, static_cast<std::uint32_t>(in.gcount()), 0};
      std::memcpy(slot.data(), &head, sizeof head);
      slot.resize(sizeof head + head.bytes);
      whoever_dies([&] { return raw.try_send(slot, shmbroker::Timeout::forever()); }).value();
    }
  }
  whoever_dies([&] { return raw.try_drain(shmbroker::Timeout::forever()); }).value();
  raw.close(true);  // for all: the workers get `closed`
}

// Packs blocks until there are no more. Killed at any instruction: the block it had goes to another worker.
void worker() {
  const Works works = enter("pipeline worker");
  const auto opened = open_raw(works.pool, shmbroker::Role::reader);
  if (!opened && opened.error().status() == shmbroker::Status::closed) return;  // started when all was done
  if (!opened) throw opened.error();
  const shmbroker::Queue& raw = *opened;
  const auto packed = open_packed(works.pool, shmbroker::Role::writer);
  shmbroker::Message message;
  for (;;) {
    const auto got = whoever_dies([&] { return raw.try_receive(message, shmbroker::Timeout::forever()); });
    if (!got && got.error().status() == shmbroker::Status::closed) return;
    if (!got) throw got.error();
    Block head;
    std::memcpy(&head, message.bytes().data(), sizeof head);
    auto slot = works.pool.acquire(sizeof(Block) + kPackedBlock, shmbroker::Timeout::forever());
    head.packed =
        static_cast<std::uint32_t>(pack(reinterpret_cast<const std::uint8_t*>(message.bytes().data() + sizeof head),
                                        head.bytes, reinterpret_cast<std::uint8_t*>(slot.data() + sizeof head)));
    std::memcpy(slot.data(), &head, sizeof head);
    slot.resize(sizeof head + head.packed);
    whoever_dies([&] { return packed.try_send(slot, shmbroker::Timeout::forever()); }).value();
    message.done();  // only now: a worker that dies before this line has sent the block, or leaves it to another one
  }
}

// ------------------------------------------------------------------ the driver

struct File {
  std::string path;
  std::vector<std::uint64_t> sums;  // of its blocks, as they came out
  std::vector<bool> seen;
};

struct Wishes {
  std::vector<std::string> from;
  std::uint64_t most = 1 << 30;
  std::uint64_t kills = 20;
  unsigned seed = std::random_device()();
};

// Regular files, the largest first, until there is enough.
std::vector<std::string> choose(const Wishes& wishes) {
  namespace fs = std::filesystem;
  std::vector<std::pair<std::uint64_t, std::string>> found;
  std::error_code failed;
  auto add = [&](const fs::path& path) {
    const auto size = fs::file_size(path, failed);
    if (!failed && size > 0 && ::access(path.c_str(), R_OK) == 0) found.emplace_back(size, path.string());
  };
  for (const std::string& from : wishes.from) {
    if (!fs::is_directory(from)) add(from);
    else
      for (const auto& entry : fs::directory_iterator(from, fs::directory_options::skip_permission_denied))
        if (entry.is_regular_file(failed) && !entry.is_symlink(failed)) add(entry.path());
  }
  std::ranges::sort(found, std::greater<>());
  std::vector<std::string> files;
  std::uint64_t bytes = 0;
  for (const auto& [size, path] : found)
    if (bytes + size <= wishes.most) {
      files.push_back(path);
      bytes += size;
    }
  if (files.empty()) throw std::runtime_error("no file to read: nothing there, or larger than --most");
  return files;
}

// The same checksums, by plain reading.
std::vector<std::uint64_t> sums_of(const std::string& path) {
  std::vector<std::uint64_t> sums;
  std::vector<std::uint8_t> block(kBlock);
  std::ifstream in(path, std::ios::binary);
  while (in.read(reinterpret_cast<char*>(block.data()), kBlock), in.gcount() > 0)
    sums.push_back(checksum(block.data(), static_cast<std::size_t>(in.gcount())));
  return sums;
}

struct Outcome {
  std::uint64_t blocks = 0, twice = 0, deaths = 0, bytes = 0, packed = 0;
};

void take(const shmbroker::Message& message, std::vector<File>& files, Outcome& outcome) {
  Block head;
  std::memcpy(&head, message.bytes().data(), sizeof head);
  File& file = files.at(head.file);
  if (file.seen.at(head.number)) {
    ++outcome.twice;  // its worker died after sending it and before saying done
    return;
  }
  std::vector<std::uint8_t> block;
  if (!unpack(reinterpret_cast<const std::uint8_t*>(message.bytes().data() + sizeof head), head.packed, block) ||
      block.size() != head.bytes)
    throw std::runtime_error("a block of " + file.path + " is damaged");
  file.seen[head.number] = true;
  file.sums[head.number] = checksum(block.data(), block.size());
  ++outcome.blocks;
  outcome.bytes += head.bytes;
  outcome.packed += head.packed;
}

Outcome collect(const shmbroker::Queue& packed, std::vector<File>& files, std::uint64_t blocks, const Wishes& wishes) {
  std::deque<Child> workers;
  for (int i = 0; i < kWorkers; ++i) workers.emplace_back(std::vector<std::string>{"worker"});
  std::vector<std::string> words{"reader"};
  for (const File& file : files) words.push_back(file.path);
  Child source(words);

  Outcome outcome;
  std::mt19937 random(wishes.seed);
  shmbroker::Message message;
  while (outcome.blocks < blocks) {
    const auto got = whoever_dies([&] { return packed.try_receive(message, 60s); });
    if (!got) throw got.error();
    take(message, files, outcome);
    message.done();
    // Spread over the work, with some chance in it, so that workers die at all kinds of moments.
    if (outcome.deaths < wishes.kills && outcome.blocks * (wishes.kills + 1) > (outcome.deaths + 1) * blocks) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      Child& victim = workers[random() % workers.size()];
      victim.kill();
      victim.start();
      ++outcome.deaths;
    }
  }
  if (!source.wait()) throw std::runtime_error("the reader failed");
  for (Child& worker : workers)
    if (!worker.wait()) throw std::runtime_error("a worker failed");
  while (packed.try_receive(message, shmbroker::Timeout::no_wait()).has_value()) {
    take(message, files, outcome);  // what came twice at the very end
    message.done();
  }
  return outcome;
}

void pipeline(const Wishes& wishes) {
  const std::vector<std::string> paths = choose(wishes);
  std::vector<File> files;
  std::vector<std::vector<std::uint64_t>> expected;
  std::uint64_t blocks = 0;
  for (const std::string& path : paths) {
    expected.push_back(sums_of(path));
    const std::size_t count = expected.back().size();
    files.push_back({path, std::vector<std::uint64_t>(count), std::vector<bool>(count)});
    blocks += count;
  }
  const auto session = shmbroker::Session::connect({.program = "pipeline"});
  session.join(session.create_group({.name = kGroup}).token);
  // A slot for each message that may be under way, and one in each hand. Two classes: what waits for workers never
  // takes the room that workers need to go on.
  const auto pool =
      shmbroker::Pool::create(session, {.name = "blocks",
                                        .classes = {{sizeof(Block) + kBlock, kRawCells + 1},
                                                    {sizeof(Block) + kPackedBlock, kWorkers * (kPackedCells + 1)}}});
  std::printf("%zu files, %llu blocks, %d workers, %llu of them killed; seed %u\n", files.size(),
              static_cast<unsigned long long>(blocks), kWorkers, static_cast<unsigned long long>(wishes.kills),
              wishes.seed);
  std::fflush(stdout);
  const auto begin = Clock::now();
  const Outcome outcome = collect(open_packed(pool, shmbroker::Role::reader), files, blocks, wishes);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();

  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].sums != expected[i]) throw std::runtime_error("the checksum of " + files[i].path + " is wrong");
    for (std::uint64_t block : files[i].sums) sum = sum * 31 + block;
  }
  std::printf("%.1f MiB packed to %.1f MiB in %.1f s; %llu deaths, %llu blocks came twice; checksum %016llx is right\n",
              static_cast<double>(outcome.bytes) / (1 << 20), static_cast<double>(outcome.packed) / (1 << 20), seconds,
              static_cast<unsigned long long>(outcome.deaths), static_cast<unsigned long long>(outcome.twice),
              static_cast<unsigned long long>(sum));
  shmb_pool_info info{};
  for (int i = 0; i < 500; ++i) {
    info = pool.info();
    if (info.participants == 1 && info.slots_used == 0) break;
    std::this_thread::sleep_for(10ms);
  }
  std::printf("%u of %u slots in use, %u participant left\n", info.slots_used, info.slots, info.participants);
  if (info.participants != 1 || info.slots_used != 0) throw std::runtime_error("something was left behind");
}

int run(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == "reader") return reader({words.begin() + 1, words.end()}), 0;
  if (!words.empty() && words[0] == "worker") return worker(), 0;
  Wishes wishes;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool more = i + 1 < words.size();
    const auto number = [&] { return std::strtoull(words[++i].c_str(), nullptr, 10); };
    if (words[i] == "--kills" && more) wishes.kills = number();
    else if (words[i] == "--most" && more) wishes.most = number() << 20;
    else if (words[i] == "--seed" && more) wishes.seed = static_cast<unsigned>(number());
    else if (words[i].starts_with("--")) {
      std::fprintf(stderr, "usage: pipeline [--kills N] [--most MEBIBYTES] [--seed N] [FILE or DIRECTORY]...\n");
      return 2;
    } else wishes.from.push_back(words[i]);
  }
  if (wishes.from.empty()) wishes.from.push_back("/usr/bin");
  return pipeline(wishes), 0;
}

}  // namespace

int main(int argc, char** argv) try { return run({argv + 1, argv + argc}); } catch (const std::exception& failure) {
  std::fprintf(stderr, "pipeline: %s\n", failure.what());
  return 1;
}
