// SPDX-License-Identifier: Apache-2.0
// A camera and three viewers: 4K frames through a ring of 8, without a copy. Any of them may be killed at any time and
// started again; the others go on. Run it in four terminals
//
//     frames camera      frames viewer 1      frames viewer 2      frames viewer 3
//
// and kill any of them. Or run `frames --demo SECONDS`: it starts the four and kills one after the other at random. It
// checks that no frame was torn, that none came out of order, and that all memory is free at the end.
//
//     g++ -std=c++20 -O2 frames.cpp -o frames -pthread $(pkg-config --cflags --libs shmbroker)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <shmbroker/pool.hpp>
#include <string>
#include <thread>

#include "child.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kWidth = 3840, kHeight = 2160;
constexpr std::size_t kPixels = kWidth * kHeight * 3 / 2;  // bytes of an NV12 picture
constexpr std::uint32_t kRing = 8;
constexpr auto kPeriod = 33ms;
constexpr int kViewers = 3;

// A slot holds this, then the picture.
struct Frame {
  std::uint64_t camera;    // its process: numbers begin again with each
  std::uint64_t number;    // 1, 2, 3 ...
  std::uint64_t checksum;  // of the picture
};
constexpr std::size_t kFrameBytes = sizeof(Frame) + kPixels;

// The report of each process to the driver about a frame: small enough to travel in the queue itself.
struct Report {
  std::uint32_t who;  // 0: the camera, else the viewer's number
  std::uint32_t pid;
  std::uint64_t camera, number;
  std::uint64_t missed;  // frames between this one and the last: overwritten before this viewer came
  std::uint64_t lag;     // frames that wait behind this one
  bool whole, in_order;
};

// ------------------------------------------------------------------ what all processes share

struct Studio {
  shmbroker::Session session;
  shmbroker::Pool pool;
};

// The first process makes the group and the pool; later ones find them.
Studio enter(const char* program) {
  auto session = shmbroker::Session::connect({.program = program});
  session.join(session.create_group({.name = "frames", .adopt_existing = true}).token);
  for (;;) {
    auto pool = shmbroker::Pool::try_open(session, "frames");
    if (pool) return {std::move(session), std::move(*pool)};
    if (pool.error().status() != shmbroker::Status::not_found) throw pool.error();
    // 8 in the ring, 1 in the camera's hands, 1 with each viewer; more while the ring of a dead camera is being read.
    pool =
        shmbroker::Pool::try_create(session, {.name = "frames", .classes = {{kFrameBytes, kRing + 1 + kViewers, 32}}});
    if (pool) return {std::move(session), std::move(*pool)};
    if (pool.error().status() != shmbroker::Status::exists) throw pool.error();
  }
}

// A dead camera's place is free as soon as the broker has seen its end.
shmbroker::Queue open_frames(const Studio& studio, shmbroker::Role role) {
  const auto until = Clock::now() + 10s;
  for (;;) {
    auto queue = studio.pool.try_open_queue(
        "frames", role, {.kind = shmbroker::QueueKind::broadcast, .cells = kRing, .drop_oldest = true});
    if (queue) return std::move(*queue);
    if (queue.error().status() != shmbroker::Status::busy || Clock::now() > until) throw queue.error();
    std::this_thread::sleep_for(5ms);
  }
}

shmbroker::Queue open_reports(const Studio& studio, shmbroker::Role role) {
  return studio.pool.open_queue("reports", role, {.kind = shmbroker::QueueKind::mpmc, .cells = 1024});
}

void send_report(const shmbroker::Queue& reports, const Report& report) {
  // Without a driver no process reads the reports, so do not wait for room.
  const auto sent = reports.try_send(std::as_bytes(std::span(&report, 1)), shmbroker::Timeout::no_wait());
  if (!sent && sent.error().status() != shmbroker::Status::full &&
      sent.error().status() != shmbroker::Status::peer_gone)
    throw sent.error();
}

std::uint64_t checksum(const std::byte* bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kPixels; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    sum = sum * 31 + word;
  }
  return sum;
}

// ------------------------------------------------------------------ the roles

// Takes a picture into each slot and sends it on; never waits for a viewer.
void camera() {
  const Studio studio = enter("camera");
  const auto frames = open_frames(studio, shmbroker::Role::writer);
  const auto reports = open_reports(studio, shmbroker::Role::writer);
  const auto pid = static_cast<std::uint32_t>(::getpid());
  auto next = Clock::now();
  for (std::uint64_t number = 1;; ++number) {
    auto slot = studio.pool.acquire(kFrameBytes);
    std::byte* const picture = slot.data() + sizeof(Frame);
    std::uint64_t light = number * 0x9e3779b97f4a7c15 + pid;
    for (std::size_t i = 0; i < kPixels; i += 8, light += 0x0101010101010101) std::memcpy(picture + i, &light, 8);
    const Frame head{pid, number, checksum(picture)};
    std::memcpy(slot.data(), &head, sizeof head);
    const auto sent = frames.try_send(slot);
    if (!sent && sent.error().status() != shmbroker::Status::peer_gone) throw sent.error();
    send_report(reports, {.who = 0, .pid = pid, .camera = pid, .number = number, .whole = true, .in_order = true});
    std::this_thread::sleep_until(next += kPeriod);
  }
}

// Looks at each frame in place. When the camera dies it gets peer_gone, and waits for the next camera.
void viewer(std::uint32_t who) {
  const Studio studio = enter("viewer");
  const auto frames = open_frames(studio, shmbroker::Role::reader);
  const auto reports = open_reports(studio, shmbroker::Role::writer);
  shmbroker::Message message;
  std::uint64_t last_camera = 0, last_number = 0;
  for (;;) {
    const auto got = frames.try_receive(message, shmbroker::Timeout::forever());
    if (!got && got.error().status() == shmbroker::Status::peer_gone) continue;
    if (!got) throw got.error();
    Frame head;
    std::memcpy(&head, message.bytes().data(), sizeof head);
    const bool same_camera = head.camera == last_camera;
    send_report(reports, {.who = who,
                          .pid = static_cast<std::uint32_t>(::getpid()),
                          .camera = head.camera,
                          .number = head.number,
                          .missed = same_camera ? head.number - last_number - 1 : 0,
                          .lag = frames.info().depth,
                          .whole = checksum(message.bytes().data() + sizeof head) == head.checksum,
                          .in_order = !same_camera || head.number > last_number});
    last_camera = head.camera;
    last_number = head.number;
    message.done();
  }
}

// ------------------------------------------------------------------ the driver

struct Tally {
  std::uint64_t frames = 0, missed = 0, most_lag = 0, lives = 1;
  bool works = false;  // since its last start
};

class Demo {
 public:
  explicit Demo(unsigned seed) : random_(seed) {}

  void run(std::chrono::duration<double> length) {
    const auto begin = Clock::now();
    wait_until_everybody_works();
    while (Clock::now() - begin < length || deaths_ < std::size(crew_)) {
      take_reports(std::chrono::milliseconds(100 + random_() % 400));
      // Each of them once, then one at random.
      const std::size_t victim = deaths_ < std::size(crew_) ? deaths_ : random_() % std::size(crew_);
      crew_[victim].kill();
      crew_[victim].start();
      ++deaths_;
      ++tallies_[victim].lives;
      tallies_[victim].works = false;
      wait_until_everybody_works();
    }
    print(std::chrono::duration<double>(Clock::now() - begin).count());
  }

  // Nobody says goodbye: all are killed, and nothing may be left of them.
  void end() {
    for (Child& child : crew_) child.kill();
    shmb_pool_info info{};
    for (int i = 0; i < 500; ++i) {
      take_reports(10ms);
      info = studio_.pool.info();
      if (info.participants == 1 && info.slots_used == 0) break;
    }
    std::printf("all killed: %u of %u slots in use, %u participant left\n", info.slots_used, info.slots,
                info.participants);
    if (info.participants != 1 || info.slots_used != 0) throw std::runtime_error("the dead have left something");
  }

 private:
  void take_reports(std::chrono::nanoseconds wait) {
    const auto until = Clock::now() + wait;
    for (auto left = wait; left > 0ns; left = until - Clock::now()) {
      const auto got = reports_.try_receive(message_, left);
      if (!got && got.error().status() == shmbroker::Status::peer_gone) continue;  // one of them was killed
      if (!got && got.error().status() == shmbroker::Status::deadline) return;
      if (!got) throw got.error();
      Report report;
      std::memcpy(&report, message_.bytes().data(), sizeof report);
      take(report);
    }
  }

  void take(const Report& report) {
    if (!report.whole) throw std::runtime_error("a viewer saw a torn frame");
    if (!report.in_order) throw std::runtime_error("a viewer saw a frame twice, or out of order");
    Tally& tally = tallies_[report.who];
    ++tally.frames;
    tally.missed += report.missed;
    tally.most_lag = std::max(tally.most_lag, report.lag);
    if (report.pid == static_cast<std::uint32_t>(crew_[report.who].pid())) tally.works = true;
  }

  void wait_until_everybody_works() {
    for (const auto until = Clock::now() + 60s; Clock::now() < until;) {
      take_reports(5ms);
      if (std::ranges::all_of(tallies_, &Tally::works)) return;
      for (const Child& child : crew_)
        if (child.gone()) throw std::runtime_error("one of them has ended by itself");
    }
    throw std::runtime_error("one of them does not get on");
  }

  void print(double seconds) const {
    for (std::size_t i = 0; i < std::size(tallies_); ++i) {
      const Tally& tally = tallies_[i];
      std::printf("%-6s %zu %6llu frames, %5.1f a second; missed %llu, at most %llu behind; lives %llu\n",
                  i == 0 ? "camera" : "viewer", i, static_cast<unsigned long long>(tally.frames),
                  static_cast<double>(tally.frames) / seconds, static_cast<unsigned long long>(tally.missed),
                  static_cast<unsigned long long>(tally.most_lag), static_cast<unsigned long long>(tally.lives));
    }
    std::printf("%llu deaths survived: each frame that was seen was whole, and in order\n",
                static_cast<unsigned long long>(deaths_));
  }

  const Studio studio_ = enter("frames");
  const shmbroker::Queue reports_ = open_reports(studio_, shmbroker::Role::reader);
  shmbroker::Message message_;
  Child crew_[1 + kViewers] = {Child({"camera"}), Child({"viewer", "1"}), Child({"viewer", "2"}),
                               Child({"viewer", "3"})};
  Tally tallies_[1 + kViewers];
  std::mt19937 random_;
  std::uint64_t deaths_ = 0;
};

// The last member of the group has left: the name is free again, and so is all the memory.
void wait_for_the_end_of_the_group() {
  const auto session = shmbroker::Session::connect({.program = "frames"});
  for (int i = 0; i < 500; ++i) {
    const auto group = session.try_create_group({.name = "frames"});
    if (group) return;
    std::this_thread::sleep_for(10ms);
  }
  throw std::runtime_error("the group outlived its members");
}

void demo(double seconds, unsigned seed) {
  std::printf("%zux%zu NV12, %.1f MiB each, in a ring of %u; 1 camera, %d viewers; %.0f s, seed %u\n", kWidth, kHeight,
              static_cast<double>(kFrameBytes) / (1 << 20), kRing, kViewers, seconds, seed);
  std::fflush(stdout);
  {
    Demo demo(seed);
    demo.run(std::chrono::duration<double>(seconds));
    demo.end();
  }
  wait_for_the_end_of_the_group();
  std::printf("the group is over, and its memory free\n");
}

int run(const std::vector<std::string>& words) {
  const std::string role = words.empty() ? "" : words[0];
  if (role == "camera" && words.size() == 1) return camera(), 0;
  if (role == "viewer" && words.size() == 2) {
    const auto who = static_cast<std::uint32_t>(std::strtoul(words[1].c_str(), nullptr, 10));
    if (who >= 1 && who <= kViewers) return viewer(who), 0;
  }
  if (role == "--demo" && (words.size() == 2 || words.size() == 3)) {
    const unsigned seed =
        words.size() == 3 ? static_cast<unsigned>(std::strtoul(words[2].c_str(), nullptr, 10)) : std::random_device()();
    return demo(std::strtod(words[1].c_str(), nullptr), seed), 0;
  }
  std::fprintf(stderr, "usage: frames --demo SECONDS [SEED] | camera | viewer 1..%d\n", kViewers);
  return 2;
}

}  // namespace

int main(int argc, char** argv) try { return run({argv + 1, argv + argc}); } catch (const std::exception& failure) {
  std::fprintf(stderr, "frames: %s\n", failure.what());
  return 1;
}
