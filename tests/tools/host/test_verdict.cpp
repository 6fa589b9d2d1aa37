// SPDX-License-Identifier: Apache-2.0
// Which evidence leads to which verdict, on inventories made by hand, and what a real scan finds of real holders.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/sys_process.hpp"
#include "tests/tools/host/plant.hpp"
#include "tools/host/removal.hpp"
#include "tools/host/verdict.hpp"

using namespace shmb;
using namespace shmb::host;
using test::Plot;

namespace {

constexpr std::int64_t kNow = 4'000'000'000;  // later than any process of this machine started

struct Sample {
  Inventory inventory;
  Patterns patterns;
  Sample() {
    inventory.now = kNow;
    inventory.processes.push_back({.pid = 1, .start = 1, .program = "init", .seen = true});
    auto parsed = Patterns::parse(
        "[[pattern]]\nprogram=\"Torch\"\nglob=\"torch_{pid}_*\"\n[[pattern]]\nprogram=\"NCCL\"\nglob=\"nccl-*\"\n"
        "[[pattern]]\nprogram=\"Server\"\nglob=\"ols-*\"\nkeep=true\n",
        "sample");
    REQUIRE(parsed);
    patterns = std::move(*parsed);
  }
  Object& file(const std::string& name, std::int64_t age) {
    Object it;
    it.key = {7, inventory.objects.size() + 1, false};
    it.name = name;
    it.names = {name};
    it.changed = kNow - age;
    inventory.objects.push_back(it);
    return inventory.objects.back();
  }
  Verdict verdict(std::size_t index = 0) {
    judge(inventory, patterns, {.stale_after = 3600, .ask_kernel = false});
    CHECK_FALSE(inventory.objects[index].evidence.empty());
    return inventory.objects[index].verdict;
  }
};

std::string dead_name(const char* rest) { return "torch_" + std::to_string(test::dead_pid()) + rest; }

}  // namespace

TEST_CASE("a holder makes any object held, whatever its name says") {
  Sample sample;
  sample.file(dead_name("_1"), 7200).holders.push_back({.process = 0});
  CHECK(sample.verdict() == Verdict::held);
}

TEST_CASE("an object whose name tells a dead creator is an orphan, young or old") {
  for (const std::int64_t age : {0, 7200}) {
    Sample sample;
    sample.file(dead_name("_1"), age);
    CHECK(sample.verdict() == Verdict::orphan);
  }
}

TEST_CASE("a creator that lives keeps its object from being an orphan; one that started later does not") {
  Sample alive;
  alive.file("torch_1_x", 10);
  CHECK(alive.verdict() == Verdict::idle);
  Sample reused;
  reused.file("torch_1_x", kNow - 1000);  // changed in 1970: before process 1 of this boot
  CHECK(reused.verdict() == Verdict::orphan);
}

TEST_CASE("where processes are hidden no creator is called dead, of a file or of a segment") {
  Sample sample;
  sample.inventory.hidden = true;
  sample.file(dead_name("_1"), 10);
  Object& segment = sample.file("shmid 1", 7200);
  segment.kind = Kind::sysv;
  segment.key.sysv = true;
  segment.creator = test::dead_pid();
  CHECK(sample.verdict(0) == Verdict::idle);
  CHECK(sample.inventory.objects[1].verdict == Verdict::idle);
}

TEST_CASE("an object that a creator of a container's own numbering may have made is no orphan") {
  Sample sample;
  // This process has its own number in an inner namespace for the kernel, as far as the inventory can tell.
  Process inner{.pid = ::getpid(), .start = 1, .program = "inner", .seen = true};
  inner.pid_ns = 5;
  sample.inventory.processes.push_back(inner);
  sample.file("torch_" + std::to_string(::getpid()) + "_x", 10);
  CHECK(sample.verdict() == Verdict::idle);
}

TEST_CASE("inside a PID namespace no creator is known to be dead") {
  Sample sample;
  sample.inventory.nested = true;
  sample.file(dead_name("_1"), 7200);
  CHECK(sample.verdict() == Verdict::stale);
}

TEST_CASE("a known leftover is stale after its time, and idle before, and never where the program comes back") {
  Sample sample;
  sample.file("nccl-old", 3600);
  sample.file("nccl-new", 3599);
  sample.file("ols-old", 1'000'000);
  sample.file("unknown", 1'000'000);
  CHECK(sample.verdict(0) == Verdict::stale);
  CHECK(sample.inventory.objects[1].verdict == Verdict::idle);
  CHECK(sample.inventory.objects[2].verdict == Verdict::idle);
  CHECK(sample.inventory.objects[3].verdict == Verdict::idle);
}

TEST_CASE("without sight of all processes nothing is called lost on the word of a scan") {
  Sample sample;
  sample.inventory.blind.push_back("3 processes are hidden");
  sample.file(dead_name("_1"), 7200);
  CHECK(sample.verdict() == Verdict::unseen);
}

TEST_CASE("a segment is held by the kernel's count alone, and lost when its creator is dead") {
  Sample sample;
  Object segment;
  segment.kind = Kind::sysv;
  segment.key = {1, 5, true};
  segment.creator = test::dead_pid();
  segment.changed = kNow - 10;
  segment.attached = 1;
  sample.inventory.objects.push_back(segment);
  CHECK(sample.verdict() == Verdict::held);
  sample.inventory.objects[0].attached = 0;
  sample.inventory.objects[0].evidence.clear();
  CHECK(sample.verdict() == Verdict::orphan);
}

TEST_CASE("a scan finds each way of holding memory, by whom, and how much") {
  Plot plot;
  const std::string opened = plot.file(plot.own("opened"), 2), mapped = plot.file(plot.own("mapped"), 3),
                    alone = plot.file(plot.own("alone")), lost = plot.file(plot.own("lost"));
  const std::string memfd_name = plot.own("mem fd\n\x1b[31m");
  const pid_t holder = plot.holder([&] {
    (void)::open(opened.c_str(), O_RDONLY);
    const int fd = ::open(mapped.c_str(), O_RDWR);
    if (::mmap(nullptr, 3 * 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) ::_exit(1);
    ::close(fd);
    const int unnamed = ::open(lost.c_str(), O_RDWR);
    if (::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, unnamed, 0) == MAP_FAILED) ::_exit(1);
    ::close(unnamed);
    ::unlink(lost.c_str());
    const int memfd = static_cast<int>(::syscall(SYS_memfd_create, memfd_name.c_str(), 0U));
    if (::ftruncate(memfd, 8192) != 0) ::_exit(1);
  });
  auto inventory = scan({});
  REQUIRE(inventory);
  const auto held_by_holder = [&](const Object* it) {
    return it != nullptr && std::ranges::any_of(it->holders, [&](const Holder& one) {
             return inventory->processes[one.process].pid == holder;
           });
  };
  const Object* it = test::find(*inventory, opened);
  REQUIRE(it != nullptr);
  CHECK(held_by_holder(it));
  CHECK(it->touched == 2 * 4096);
  CHECK(it->holders.size() == 1);
  CHECK(it->holders[0].descriptors == 1);
  CHECK(it->holders[0].mapped == 0);
  it = test::find(*inventory, mapped);
  REQUIRE(it != nullptr);
  CHECK(held_by_holder(it));
  CHECK(it->holders[0].mapped == 3 * 4096);
  CHECK(it->holders[0].descriptors == 0);
  it = test::find(*inventory, alone);
  REQUIRE(it != nullptr);
  CHECK(it->holders.empty());
  const auto by_name = [&](const std::string& name) {
    const auto found = std::ranges::find(inventory->objects, name, &Object::name);
    return found == inventory->objects.end() ? nullptr : &*found;
  };
  it = by_name(memfd_name);
  REQUIRE(it != nullptr);
  CHECK(it->kind == Kind::memfd);
  CHECK(it->size == 8192);
  CHECK(held_by_holder(it));
  it = by_name(plot.own("lost"));
  REQUIRE(it != nullptr);
  CHECK(it->kind == Kind::deleted);
  CHECK(it->place == "/dev/shm");
  CHECK(held_by_holder(it));
}

TEST_CASE("the kernel is the witness where a scan cannot see the holder") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  const pid_t holder = plot.holder([&] { (void)::open(path.c_str(), O_RDONLY); });
  auto inventory = scan({});
  REQUIRE(inventory);
  Object* it = const_cast<Object*>(test::find(*inventory, path));
  REQUIRE(it != nullptr);
  std::string reason;
  CHECK(kernel_says_held(*inventory, *it, reason) == true);
  plot.end(holder);
  CHECK(kernel_says_held(*inventory, *it, reason) == false);
  it->holders.clear();
  inventory->blind = {"something is hidden"};
  auto patterns = Patterns::parse("", "none");
  judge(*inventory, *patterns, {});
  CHECK(it->verdict == Verdict::idle);
}

TEST_CASE("nothing is called lost that the kernel says is held, also where all processes were seen") {
  Plot plot;
  const std::string path = plot.file("torch_" + std::to_string(test::dead_pid()) + "_" + plot.own("x"));
  const pid_t holder = plot.holder([&] {
    if (::open(path.c_str(), O_RDONLY | O_CLOEXEC) < 0) ::_exit(9);
  });
  auto inventory = scan({});
  REQUIRE(inventory);
  auto patterns = Patterns::parse("[[pattern]]\nprogram=\"Torch\"\nglob=\"torch_{pid}_*\"\n", "sample");
  Object* it = const_cast<Object*>(test::find(*inventory, path));
  REQUIRE(it != nullptr);
  it->holders.clear();  // as if its only descriptor were under way in a socket
  inventory->blind.clear();
  judge(*inventory, *patterns, {});
  CHECK(it->verdict == Verdict::held);
  plot.end(holder);
  it->evidence.clear();
  judge(*inventory, *patterns, {});
  CHECK(it->verdict == Verdict::orphan);
}

TEST_CASE("a tool that asks the kernel about the same file at the same moment is no holder of it") {
  Plot plot;
  const std::string path = plot.file(plot.own("a"));
  auto inventory = scan({});
  REQUIRE(inventory);
  Object* it = const_cast<Object*>(test::find(*inventory, path));
  REQUIRE(it != nullptr);
  inventory->blind = {"something is hidden"};
  std::erase_if(inventory->objects, [&](const Object& each) { return each.key != it->key; });
  it = inventory->objects.data();
  auto patterns = Patterns::parse("", "none");
  int asker = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  judge(*inventory, *patterns, {.rest = [&](std::int64_t) { ::close(std::exchange(asker, -1)); }});
  CHECK(it->verdict == Verdict::idle);
  CHECK(it->evidence.size() == 2);
  asker = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  it->evidence.clear();
  judge(*inventory, *patterns, {.rest = [](std::int64_t) {}});
  CHECK(it->verdict == Verdict::held);
  CHECK(it->evidence.size() == 1);
  ::close(asker);
}

TEST_CASE("a tool that asks while a scan passes, and a process that has ended since, are no holders; a real one is") {
  Plot plot;
  auto patterns = Patterns::parse("[[pattern]]\nprogram=\"Torch\"\nglob=\"torch_{pid}_*\"\n", "sample");
  const std::string path = plot.file("torch_" + std::to_string(test::dead_pid()) + "_" + plot.own("y"));
  int told[2], opened[2];
  REQUIRE(::pipe2(told, O_CLOEXEC) == 0);
  REQUIRE(::pipe2(opened, O_CLOEXEC) == 0);
  // It has this program's name, as another tool would have, and keeps the file open until it is told.
  const pid_t asker = plot.holder([&] {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) ::_exit(9);
  });
  auto inventory = scan({});
  REQUIRE(inventory);
  inventory->blind.clear();
  Object it = *test::find(*inventory, path);
  REQUIRE(it.holders.size() == 1);
  REQUIRE(inventory->processes[it.holders[0].process].pid == asker);
  inventory->objects = {it};
  const JudgeOptions in_haste{.rest = [](std::int64_t) {}};
  judge(*inventory, *patterns, in_haste);
  CHECK(inventory->objects[0].verdict == Verdict::held);  // it holds it all the time, whatever its name is
  plot.end(asker);
  inventory->objects = {it};
  judge(*inventory, *patterns, in_haste);
  CHECK(inventory->objects[0].verdict == Verdict::orphan);
  CHECK(inventory->objects[0].holders.empty());

  // This one closes the file between the scan and the verdict, and lives on.
  int fd = -1;
  const pid_t closer = ::fork();
  REQUIRE(closer >= 0);
  if (closer == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    char byte = fd < 0 ? 'n' : 'y';
    if (::write(opened[1], &byte, 1) != 1 || ::read(told[0], &byte, 1) != 1) ::_exit(9);
    ::close(fd);
    if (::write(opened[1], &byte, 1) != 1) ::_exit(9);
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(opened[0], &byte, 1) == 1);
  REQUIRE(byte == 'y');
  auto second = scan({});
  REQUIRE(::write(told[1], &byte, 1) == 1);
  REQUIRE(::read(opened[0], &byte, 1) == 1);
  REQUIRE(second);
  second->blind.clear();
  it = *test::find(*second, path);
  CHECK(it.holders.size() == 1);
  second->objects = {it};
  judge(*second, *patterns, in_haste);
  CHECK(second->objects[0].verdict == Verdict::orphan);
  ::kill(closer, SIGKILL);
  ::waitpid(closer, nullptr, 0);
  for (const int end : {told[0], told[1], opened[0], opened[1]}) ::close(end);
}

TEST_CASE("a file that a gc has set aside is not asked about, for that would break its lease") {
  Plot plot;
  auto patterns = Patterns::parse("", "none");
  const std::string path = plot.file(plot.own("a"));
  auto inventory = scan({});
  REQUIRE(inventory);
  Object it = *test::find(*inventory, path);
  CHECK_FALSE(is_set_aside(it.name));
  it.name = ".shmbroker-gc-1-00/" + it.name;  // opened, it would be found gone, and that would be the reason
  CHECK(is_set_aside(it.name));
  inventory->blind = {"something is hidden"};
  inventory->objects = {it};
  judge(*inventory, *patterns, {});
  CHECK(inventory->objects[0].verdict == Verdict::unseen);
  CHECK(inventory->objects[0].evidence.back().find("the kernel was not asked") != std::string::npos);
}

TEST_CASE("any of a file's names may tell its creator, and one that may live keeps it") {
  Sample sample;
  Object& dead = sample.file("plain", 10);
  dead.names = {"plain", dead_name("_1")};
  CHECK(sample.verdict() == Verdict::orphan);
  Sample other;
  Object& alive = other.file(dead_name("_1"), 10);
  alive.names.push_back("torch_1_x");
  CHECK(other.verdict() == Verdict::idle);
}
