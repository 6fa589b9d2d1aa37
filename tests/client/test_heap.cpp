// SPDX-License-Identifier: Apache-2.0
// The heap: objects and containers that several mappings share, and what is left when somebody dies in it. Deaths are
// placed two ways: at every counted step (of the lock, the heap's own work, and each copy of an element inside Boost's
// containers), and by SIGKILL after a random time, which falls between any two instructions.
#include <sys/mman.h>

#include <atomic>
#include <cctype>
#include <cstdint>

namespace heap_test {
void step();
}
#define SHMBROKER_HEAP_STEP() heap_test::step()

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "client/face/heap.hpp"
#include "tests/harness/child.hpp"
#include "tests/support/face.hpp"
#include "tests/support/session.hpp"

using shmbroker::Heap;
using shmbroker::Status;
using support::status_of;
namespace heap = shmbroker::heap;
using namespace std::chrono_literals;

namespace {

// The shared state of a trial's processes besides the heap.
struct Stage {
  std::atomic<std::uint64_t> steps{0}, die_at{0};
  std::atomic<int> inside{0}, stop{0}, rounds{0};
};
Stage* stage = nullptr;
bool counted = false;  // this process dies at its step

class Staged {
 public:
  Staged() {
    void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) std::abort();
    stage = ::new (page) Stage();
  }
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged() {
    ::munmap(stage, 4096);
    stage = nullptr;
  }
};

}  // namespace

void heap_test::step() {
  if (!counted || stage->steps.fetch_add(1) + 1 != stage->die_at.load()) return;
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

namespace {

struct Element {
  explicit Element(std::uint64_t v) : value(v) {}
  Element(const Element& other) : value(other.value) { heap_test::step(); }
  Element& operator=(const Element& other) {
    heap_test::step();
    value = other.value;
    return *this;
  }
  std::uint64_t value;
};

// Three containers that are changed together, so that a change half done is seen.
struct Shared {
  using allocator_type = heap::allocator<std::byte>;
  explicit Shared(const allocator_type& allocator) : elements(allocator), names(allocator), text(allocator) {}
  heap::vector<Element> elements;
  heap::map<std::uint64_t, heap::string> names;
  heap::string text;
};

std::string name_of(std::uint64_t i) { return "a name that is too long for the string itself: " + std::to_string(i); }

void change(const Heap& in, Shared& shared) {
  const auto guard = in.lock();
  stage->inside = 1;
  const std::uint64_t next = shared.elements.size();
  if (next == 40) {
    shared.names.clear();
    heap::vector<Element>(shared.elements.get_allocator()).swap(shared.elements);
    shared.text.clear();
    shared.text.shrink_to_fit();
  } else {
    shared.elements.push_back(Element(next));
    shared.names.emplace(next, name_of(next).c_str());
    shared.text.push_back(static_cast<char>('a' + next % 26));
  }
  if (next % 8 == 3) in.construct<std::uint64_t>("extra", next);
  if (next % 8 == 4) in.destroy<std::uint64_t>("extra");
  stage->inside = 0;
}

// "" where everything is as some number of whole changes leaves it.
std::string wrong(const Heap& in, const Shared& shared) {
  if (!in.check()) return "the allocator's books";
  if (shared.names.size() != shared.elements.size() || shared.text.size() != shared.elements.size()) return "sizes";
  for (std::uint64_t i = 0; i < shared.elements.size(); ++i) {
    if (shared.elements[i].value != i) return "element";
    const auto found = shared.names.find(i);
    if (found == shared.names.end() || found->second != name_of(i).c_str()) return "name";
    if (shared.text[i] != static_cast<char>('a' + i % 26)) return "text";
  }
  return {};
}

shmbroker::Session local() {
  shmbroker::ConnectOptions options;
  options.local_only = true;
  return shmbroker::Session::connect(options);
}
// A broker with a named group, and sessions in it.
struct Team {
  shmbroker::Session member() const {
    shmbroker::ConnectOptions options;
    options.socket = broker.socket();
    options.group = variable;
    return shmbroker::Session::connect(options);
  }
  harness::BrokerFixture broker;
  shmbroker::Session session = support::connect(broker.socket());
  std::string variable = [this] {
    shmbroker::GroupOptions options;
    options.name = "team";
    const auto group = session.create_group(options);
    session.join(group.token);
    return group.variable("team");
  }();
};
bool inside(const Heap& in, const void* address) {
  const auto bytes = in.region().bytes();
  return address >= bytes.data() && address < bytes.data() + bytes.size();
}

// Everything a caller can try on a poisoned heap: an error from each, and the data can be read.
void require_poisoned(const Heap& in, bool has_shared) {
  CHECK(status_of(in.try_lock()) == Status::poisoned);
  CHECK(status_of(in.try_lock_to_read(shmbroker::Timeout::no_wait())) == Status::poisoned);
  CHECK(status_of(in.try_find<Shared>("shared")) == Status::poisoned);
  CHECK(status_of(in.try_construct<int>("new", 1)) == Status::poisoned);
  CHECK(status_of(in.try_destroy<Shared>("shared")) == Status::poisoned);
  CHECK(status_of(in.try_info()) == Status::poisoned);
  CHECK_THROWS_AS(heap::vector<int>(std::size_t{3}, 7, in.allocator()), shmbroker::Error);
  const auto salvage = in.salvage();
  for (const auto& object : salvage.objects()) CHECK(salvage.contains(object.bytes.data(), object.bytes.size()));
  if (!has_shared) return;
  const Shared* shared = salvage.find_unchecked<Shared>("shared");
  CHECK(inside(in, shared));
  const Element* first = shared->elements.data();
  const std::size_t count = shared->elements.size();
  if (count == 0 || !salvage.contains(first, count * sizeof(Element))) return;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += first[i].value;
  CHECK(sum + 1 != 0);
}

int trials() {
  const char* given = std::getenv("SHMB_HEAP_TRIALS");
  return given == nullptr ? 200 : std::atoi(given);
}

}  // namespace

TEST_CASE("an object that one session constructs in a heap is found by another, at another address") {
  const Team team;
  const auto other_session = team.member();
  const auto here = Heap::create(team.session, "h", 1 << 20);
  auto* words = here.construct<heap::vector<heap::string>>("words");
  auto* table = here.construct<heap::map<heap::string, heap::vector<int>>>("table");
  auto* hashed = here.construct<heap::unordered_map<int, double>>("hashed");
  auto* set = here.construct<heap::set<int>>("set");
  {
    const auto guard = here.lock();
    for (int i = 0; i < 100; ++i) {
      words->emplace_back(name_of(static_cast<unsigned>(i)).c_str());
      (*table)[heap::string(name_of(static_cast<unsigned>(i)).c_str(), here.allocator())].push_back(i);
      hashed->emplace(i, i / 2.0);
      set->insert(i % 10);
    }
    CHECK(inside(here, words->back().data()));
    CHECK(inside(here, table->begin()->first.data()));
    CHECK(inside(here, table->begin()->second.data()));
    CHECK(inside(here, &*hashed->begin()));
  }
  const auto there = Heap::open(other_session, "h");
  const auto* seen = there.find<const heap::vector<heap::string>>("words");
  REQUIRE(static_cast<const void*>(seen) != words);
  const auto guard = there.lock_to_read();
  CHECK(inside(there, seen->back().data()));
  CHECK(seen->size() == 100);
  CHECK((*seen)[99] == name_of(99).c_str());
  const auto& lists = *there.find<heap::map<heap::string, heap::vector<int>>>("table");
  CHECK(lists.find(heap::string(name_of(7).c_str(), there.allocator()))->second[0] == 7);
  CHECK((*there.find<heap::unordered_map<int, double>>("hashed"))[9] == 4.5);
  CHECK(there.find<heap::set<int>>("set")->size() == 10);
  CHECK(there.names().size() == 4);
}

static_assert(heap::fits<int> && heap::fits<heap::string> && heap::fits<heap::map<heap::string, heap::vector<int>>>);
static_assert(!heap::fits<std::string> && !heap::fits<std::vector<int>>);
static_assert(!heap::fits<std::pair<const int, std::string>> && !heap::fits<std::pair<const std::string, int>>);

TEST_CASE("containers in containers are all in the heap, also those of hash maps") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto made = Heap::create(session, "nested", 1 << 20);
  const std::uint64_t before = made.free_bytes();
  using Lists = heap::vector<heap::vector<heap::string>>;
  using Trees = heap::map<int, heap::map<int, heap::vector<heap::string>>>;
  using Hashed = heap::unordered_map<int, heap::unordered_map<int, heap::vector<heap::string>>>;
  const std::string text = name_of(1);
  {
    auto* lists = made.construct<Lists>("lists");
    lists->resize(3);
    lists->at(2).emplace_back(text.c_str());
    (*made.construct<Trees>("trees"))[1][2].emplace_back(text.c_str());
    auto& inner = (*made.construct<Hashed>("hashed"))[1][2];
    inner.emplace_back(text.c_str());
    CHECK(inner.get_allocator().outer_allocator() == made.allocator());
    CHECK(inner.front().get_allocator() == made.allocator());
  }
  auto opened = Heap::open(session, "nested");  // at another address
  CHECK(opened.find<Lists>("lists")->at(2).at(0) == text.c_str());
  CHECK(opened.find<Trees>("trees")->at(1).at(2).at(0) == text.c_str());
  CHECK(opened.find<Hashed>("hashed")->at(1).at(2).at(0) == text.c_str());
  opened.destroy<Lists>("lists");
  opened.destroy<Trees>("trees");
  opened.destroy<Hashed>("hashed");
  CHECK(made.free_bytes() == before);
  CHECK(made.check());
}

TEST_CASE("processes that open a heap by name, one of them before it is there, change it in turn") {
  const Team team;
  auto add = [&](int from) {
    return harness::Child::run([&, from] {
      const auto own = team.member();
      shmbroker::AttachOptions waiting;
      waiting.wait = 10s;
      const auto mine = Heap::open(own, "h", waiting);
      for (int i = from; i < from + 500; ++i) {
        const auto guard = mine.lock();
        (*mine.find_or_construct<heap::map<int, int>>("m"))[i] = i;
      }
      return 0;
    });
  };
  auto early = add(0);
  const auto in = Heap::create(team.session, "h", 1 << 20);
  auto late = add(500);
  CHECK(early.wait() == 0);
  CHECK(late.wait() == 0);
  const auto* m = in.find<heap::map<int, int>>("m");
  CHECK(m->size() == 1000);
  CHECK(in.check());
}

TEST_CASE("destroying everything gives every byte back") {
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 20);
  const auto before = in.free_bytes();
  for (int round = 0; round < 3; ++round) {
    in.construct<heap::vector<heap::string>>("v", std::size_t{50}, heap::string(name_of(1).c_str(), in.allocator()));
    CHECK(in.free_bytes() < before - 50 * name_of(1).size());
    in.destroy<heap::vector<heap::string>>("v");
    CHECK(in.free_bytes() == before);
  }
  struct alignas(256) Wide {
    char bytes[256];
  };
  CHECK(reinterpret_cast<std::uintptr_t>(in.construct<Wide>("w")) % 256 == 0);
  in.destroy<Wide>("w");
  CHECK(in.check());
  CHECK(in.info().lost_bytes == 0);
}

TEST_CASE("a constructor that throws leaves neither a name nor a lost byte") {
  struct Refuses {
    Refuses() { throw std::string("no"); }
  };
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 20);
  const auto before = in.free_bytes();
  CHECK_THROWS_AS(in.construct<Refuses>("r"), std::string);
  CHECK(in.free_bytes() == before);
  CHECK(in.names().empty());
  CHECK(in.try_lock().has_value());
}

TEST_CASE("bad input is refused with a sentence") {
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 16);
  CHECK(status_of(Heap::try_create(session, "", 1500)) == Status::invalid);
  CHECK(status_of(in.try_construct<int>("", 1)) == Status::invalid);
  CHECK(status_of(in.try_construct<int>(std::string(256, 'x'), 1)) == Status::invalid);
  CHECK(in.try_construct<int>(std::string(255, 'x'), 1).has_value());
  in.construct<int>("i", 1);
  CHECK(status_of(in.try_construct<int>("i", 2)) == Status::exists);
  CHECK(status_of(in.try_construct<float>("i", 2.0F)) == Status::exists);
  CHECK(*in.find_or_construct<int>("i", 3) == 1);
  CHECK(status_of(in.try_find_or_construct<float>("i", 2.0F)) == Status::invalid);
  CHECK(status_of(in.try_find<float>("i")) == Status::invalid);
  CHECK(in.try_find<float>("i").error().what() == std::string("'i' is of type int, not float"));
  // A name that a peer wrote, whose text would have 2^40 parts.
  std::string swollen = "St4pairI";
  for (int i = 0; i < 40; ++i) swollen += "S_I";
  swollen += "iiE";
  for (const char last : std::string_view("123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    swollen += std::string("S") + last + "_E";
  CHECK(heap::detail::type_text(swollen, heap::detail::Written::by_a_peer).starts_with("St4pairIS_I"));
  using Long = heap::map<heap::string, heap::vector<heap::map<heap::string, int>>>;
  const std::string refused = in.try_find<Long>("i").error().what();
  CHECK(refused.find("of type int, not boost::container::map<") != std::string::npos);
  CHECK(refused.ends_with("..."));
  CHECK_FALSE(std::isalnum(static_cast<unsigned char>(refused[refused.size() - 4])));
  CHECK(status_of(in.try_destroy<float>("i")) == Status::invalid);
  CHECK(status_of(in.try_find<int>("j")) == Status::not_found);
  CHECK(status_of(in.try_destroy<int>("j")) == Status::not_found);
  CHECK(status_of(in.try_salvage()) == Status::busy);
  auto* v = in.construct<heap::vector<char>>("v");
  try {
    v->resize(1 << 16);
    FAIL("there was room");
  } catch (const shmbroker::Error& error) {
    CHECK(error.status() == Status::limit);
    CHECK(error.detail().limit == 1 << 16);
    CHECK(error.detail().asked == 1 << 16);
    CHECK(error.detail().used > 0);
  }
  CHECK(v->empty());
  CHECK(in.check());
  CHECK_THROWS_AS(in.allocator<int>().allocate(SIZE_MAX / 2), shmbroker::Error);
}

TEST_CASE("a region that holds no heap, or one of other Boost or of another PID namespace, is not opened") {
  const auto session = local();
  shmbroker::CreateOptions many;
  many.many_writers = true;
  // Another handle on the same memory.
  auto again = [&](const shmbroker::Region& region) {
    const int fd = region.try_descriptor().value();
    auto second = session.adopt(fd);
    ::close(fd);
    return second;
  };
  auto zeros = session.create(1 << 16, many);
  CHECK(status_of(Heap::try_open(again(zeros))) == Status::invalid);
  shmbroker::CreateOptions promised = many;
  promised.heap = true;
  auto awaited = session.create(1 << 16, promised);
  CHECK(status_of(Heap::try_open(std::move(awaited), 1ms)) == Status::not_ready);
  auto other = session.create(1 << 16, many);
  other.data()[0] = std::byte{1};
  CHECK(status_of(Heap::try_open(again(other))) == Status::invalid);
  CHECK(status_of(Heap::try_create(again(other))) == Status::exists);
  CHECK(status_of(Heap::try_open(session.create(100, many))) == Status::invalid);
  const auto in = Heap::create(again(zeros));
  CHECK(status_of(Heap::try_create(again(zeros))) == Status::exists);
  in.construct<int>("i", 5);
  CHECK(*Heap::open(again(zeros)).find<int>("i") == 5);
  auto& header = *reinterpret_cast<heap::detail::Header*>(zeros.data());
  ++header.boost;
  CHECK(status_of(Heap::try_open(again(zeros))) == Status::unsupported);
  --header.boost;
  CHECK(Heap::try_open(again(zeros)).has_value());
  ++header.pid_namespace;
  CHECK(status_of(Heap::try_open(again(zeros))) == Status::unsupported);
}

TEST_CASE("a written-over list of names is an error, never a crash") {
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 16);
  in.construct<int>("i", 1);
  auto& header = *reinterpret_cast<heap::detail::Header*>(const_cast<std::byte*>(in.region().bytes().data()));
  auto& bucket = header.buckets[heap::detail::Catalogue::bucket_of("i")];
  const std::uint64_t good = bucket.load();
  auto* entry = reinterpret_cast<heap::detail::Entry*>(in.region().data() + good);
  for (const std::uint64_t bad :
       {std::uint64_t{1}, std::uint64_t{1} << 16, (std::uint64_t{1} << 16) - 8, ~std::uint64_t{7}}) {
    bucket = bad;
    CHECK(status_of(in.try_find<int>("i")) == Status::broken);
    CHECK(status_of(in.try_construct<int>("i", 1)) == Status::broken);
    CHECK(status_of(in.try_names()) == Status::broken);
  }
  bucket = good;
  entry->next = good;  // a ring
  CHECK(*in.find<int>("i") == 1);
  CHECK(status_of(in.try_names()) == Status::broken);
  entry->next = 0;
  entry->object = 1 << 17;
  CHECK(status_of(in.try_find<int>("i")) == Status::broken);
}

TEST_CASE("the lock is recursive, works between threads, and waits at most until the deadline") {
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 16);
  auto first = in.lock();
  auto second = in.lock_to_read();
  in.construct<int>("i", 0);
  std::thread([&] {
    CHECK(status_of(in.try_lock(1ms)) == Status::deadline);
    CHECK(status_of(in.try_lock(shmbroker::Timeout::no_wait())) == Status::deadline);
    CHECK_FALSE(in.poisoned());
  }).join();
  second.unlock();
  first = in.lock();  // gives the one back after it has taken the other
  first.unlock();
  auto* i = in.find<int>("i");
  std::thread threads[4];
  for (auto& thread : threads)
    thread = std::thread([&] {
      for (int n = 0; n < 1000; ++n) {
        const auto guard = in.lock();
        ++*i;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(*i == 4000);
}

TEST_CASE("a stopped holder is waited for and then an error; a destructor meanwhile loses its block and says so") {
  const auto session = local();
  shmbroker::HeapOptions options;
  options.lock_timeout = 1ms;
  const auto in = Heap::create(session, "", 1 << 16, options);
  auto numbers = std::make_unique<heap::vector<int>>(std::size_t{10}, 1, in.allocator());
  const harness::Gate held;
  const auto child = harness::Child::run([&] {
    const auto guard = in.lock();
    held.open();
    ::raise(SIGSTOP);
    return 0;
  });
  REQUIRE(held.wait());
  CHECK(status_of(in.try_lock(1ms)) == Status::deadline);
  CHECK(status_of(in.try_find<int>("i")) == Status::deadline);
  numbers.reset();
  child.kill(SIGCONT);
  CHECK(child.wait_ended(30'000));
  CHECK(in.info().lost_bytes == 40);
}

TEST_CASE("a death while reading does no harm, a death while changing poisons, also of a thread") {
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 16);
  in.construct<int>("i", 7);
  std::optional<Heap::Guard> kept;
  auto die = [&](bool reading) {
    return harness::Child::run([&, reading]() -> int {
      const auto guard = reading ? in.lock_to_read() : in.lock();
      ::kill(::getpid(), SIGKILL);
      return 0;
    });
  };
  CHECK(die(true).wait() == 128 + SIGKILL);
  CHECK_FALSE(in.poisoned());
  CHECK(*in.find<int>("i") == 7);
  SUBCASE("a process") { CHECK(die(false).wait() == 128 + SIGKILL); }
  SUBCASE("a thread") {
    std::thread([&] { kept.emplace(in.lock()); }).join();
  }
  CHECK(in.poisoned());
  CHECK(*in.salvage().find<int>("i") == 7);
}

TEST_CASE("a forked child does not give back what its parent holds") {
  const auto session = local();
  const auto in = Heap::create(session, "", 1 << 16);
  in.construct<int>("i", 0);
  auto guard = in.lock();
  CHECK(harness::Child::run([&] {
          guard.unlock();
          return status_of(in.try_lock(1ms)) == Status::deadline ? 0 : 1;
        }).wait() == 0);
  std::thread([&] { CHECK(status_of(in.try_lock(1ms)) == Status::deadline); }).join();
  in.destroy<int>("i");
  guard.unlock();
  CHECK(harness::Child::run([&] { return in.try_lock().has_value() ? 0 : 1; }).wait() == 0);
}

TEST_CASE("a poisoned heap is salvaged through a region that may only be read") {
  const Team team;
  const auto in = Heap::create(team.session, "h", 1 << 20);
  in.construct<heap::vector<int>>("v", std::size_t{1000}, 5);
  in.construct<heap::string>("t", name_of(3).c_str());
  in.construct<heap::string>("short", "s");
  in.construct<int>("i", 9);
  CHECK(status_of(shmbroker::Salvage::try_open(team.session, "h")) == Status::busy);
  CHECK(harness::Child::run([&]() -> int {
          const auto guard = in.lock();
          ::kill(::getpid(), SIGKILL);
          return 0;
        }).wait() == 128 + SIGKILL);
  CHECK(in.poisoned());
  const auto reader = team.member();
  const auto left = shmbroker::Salvage::open(reader, "h");
  CHECK(left.objects().size() == 4);
  CHECK(left.elements<int>("v").size() == 1000);
  CHECK(left.elements<int>("v")[999] == 5);
  CHECK(left.text("t") == name_of(3));
  CHECK(left.text("short") == "s");
  CHECK(*left.find<int>("i") == 9);
  CHECK(status_of(left.try_find<int>("t")) == Status::invalid);
  CHECK(status_of(left.try_find<int>("none")) == Status::not_found);
  // A poisoned heap is opened all the same.
  const auto again = Heap::open(team.session, "h");
  CHECK(again.salvage().text("t") == name_of(3));
}

TEST_CASE("the elements of a vector that begins where none can stand are not given out of a poisoned heap") {
  const Team team;
  const auto in = Heap::create(team.session, "h", 1 << 20);
  auto* const vector = in.construct<heap::vector<int>>("v", std::size_t{100}, 5);
  // One byte further, by whichever of its words says where the elements are.
  const auto begin = reinterpret_cast<std::uintptr_t>(vector->data());
  auto* const words = reinterpret_cast<std::uint64_t*>(vector);
  bool moved = false;
  for (std::size_t i = 0; i < sizeof *vector / sizeof *words && !moved; ++i) {
    ++words[i];
    moved = reinterpret_cast<std::uintptr_t>(vector->data()) == begin + 1 && vector->size() == 100;
    if (!moved) --words[i];
  }
  REQUIRE(moved);
  CHECK(harness::Child::run([&]() -> int {
          const auto guard = in.lock();
          ::kill(::getpid(), SIGKILL);
          return 0;
        }).wait() == 128 + SIGKILL);
  CHECK(status_of(in.salvage().try_elements<int>("v")) == Status::broken);
}

TEST_CASE("a maker that dies at any step of making leaves a region that is opened or refused in time") {
  const auto session = local();
  shmbroker::CreateOptions many;
  many.many_writers = true;
  int refused = 0, opened = 0, died = 1;
  for (std::uint64_t k = 1; died != 0; ++k) {
    const Staged staged;
    auto region = session.create(1 << 16, many);
    const int fd = region.try_descriptor().value();
    stage->die_at = k;
    died = harness::Child::run([&] {
             counted = true;
             const auto made = Heap::try_create(std::move(region));
             return made.has_value() ? 0 : 1;
           }).wait();
    REQUIRE((died == 0 || died == 128 + SIGKILL));
    const auto found = Heap::try_open(session.adopt(fd), 1ms);
    ::close(fd);
    if (found) {
      ++opened;
      // Dead between the last work and giving the lock back: that counts as a change.
      const Status usable = status_of(found->try_construct<int>("i", 1));
      CHECK((usable == Status::ok || usable == Status::poisoned));
    } else {
      ++refused;
      const Status why = found.error().status();
      CHECK((why == Status::poisoned || why == Status::not_ready || (why == Status::invalid && k <= 2)));
    }
    REQUIRE(k < 1000);
  }
  CHECK(refused >= 3);
  CHECK(opened >= 2);
}

TEST_CASE("a death at every counted step of changes leaves a heap that is whole, or poisoned for everybody") {
  const auto session = local();
  int whole = 0, poisoned = 0;
  std::uint64_t last = 0;
  {  // how many steps there are
    const Staged staged;
    const auto in = Heap::create(session, "", 1 << 18);
    auto* shared = in.construct<Shared>("shared");
    counted = true;
    for (int i = 0; i < 45; ++i) change(in, *shared);
    counted = false;
    last = stage->steps;
    REQUIRE(last > 1000);
  }
  // Every step of the first changes, then a stride that is coprime to their length.
  for (std::uint64_t k = 1; k <= last; k += k < 150 ? 1 : 61) {
    const Staged staged;
    const auto in = Heap::create(session, "", 1 << 18);
    auto* shared = in.construct<Shared>("shared");
    stage->die_at = k;
    REQUIRE(harness::Child::run([&] {
              counted = true;
              for (int i = 0; i < 45; ++i) change(in, *shared);
              return 0;
            }).wait() == 128 + SIGKILL);
    CAPTURE(k);
    if (in.poisoned()) {
      ++poisoned;
      require_poisoned(in, true);
    } else {
      ++whole;
      CHECK(stage->inside == 0);
      CHECK(wrong(in, *in.find<Shared>("shared")) == "");
      for (int i = 0; i < 45; ++i) change(in, *shared);
      CHECK(wrong(in, *shared) == "");
    }
  }
  MESSAGE(whole << " whole, " << poisoned << " poisoned of " << last << " steps");
  CHECK(whole >= 5);
  CHECK(poisoned > 100);
}

TEST_CASE("SIGKILL at random times among processes that all write: none hangs, and half-done changes are found") {
  const auto session = local();
  std::mt19937 random(20261121);
  int whole = 0, poisoned = 0;
  for (int trial = 0; trial < trials(); ++trial) {
    const Staged staged;
    const auto in = Heap::create(session, "", 1 << 18);
    auto* shared = in.construct<Shared>("shared");
    // 0 told to stop, 1 poisoned; anything else is a failure.
    auto work = [&] {
      return harness::Child::run([&] {
        try {
          while (stage->stop == 0) {
            change(in, *shared);
            ++stage->rounds;
          }
          return 0;
        } catch (const shmbroker::Error& error) {
          if (error.status() == Status::poisoned) return 1;
          std::fprintf(stderr, "%s\n", error.what());
          return 2;
        }
      });
    };
    auto victim = work(), peer = work();
    for (int waited = 0; stage->rounds < 5 && !victim.wait_ended(0) && waited < 300'000; ++waited) ::usleep(100);
    ::usleep(random() % 1000);
    victim.kill();
    CAPTURE(trial);
    CHECK(victim.wait() == 128 + SIGKILL);
    const bool dead = in.try_lock().has_value() ? false : in.poisoned();
    stage->stop = 1;
    // Told to stop it may not have looked again.
    const int ended = peer.wait();
    CHECK((ended == 0 || (dead && ended == 1)));
    if (dead) {
      ++poisoned;
      require_poisoned(in, true);
    } else {
      ++whole;
      CHECK(wrong(in, *in.find<Shared>("shared")) == "");
    }
  }
  MESSAGE(whole << " whole, " << poisoned << " poisoned of " << trials());
  CHECK(whole + poisoned == trials());
  CHECK(poisoned > 0);
}
