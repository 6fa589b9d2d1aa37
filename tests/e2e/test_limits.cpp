// SPDX-License-Identifier: Apache-2.0
// Short of descriptors, of address space, of memory in the cgroup: on either side each is a sentence, nothing is lost,
// and what is freed can be used again.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <vector>

#include "tests/e2e/machine.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/sanitizer.hpp"

using namespace e2e;

TEST_CASE("5,000 live regions with 1,024 descriptors: written by one process, read by another, none mixed up") {
  constexpr std::size_t kCount = 5000, kLength = 1000;
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world({.engine = engine});
    struct Ids {
      shmb_region_id ids[kCount];
    };
    Shared<Ids> shared;
    Gate written, done;
    Child writer = actor([&] {
      limit_descriptors(1024);
      const Session session = world.connect();
      const auto regions = session.create_many(std::vector<std::uint64_t>(kCount, kLength));
      for (std::size_t i = 0; i < kCount; ++i) {
        fill(regions[i].bytes(), i);
        shared->ids[i] = regions[i].id().to_c();
      }
      NEED(open_descriptors() < 64);
      written.open();
      NEED(done.wait());
      for (std::size_t i = 0; i < kCount; ++i) NEED(holds(regions[i].bytes(), i));
    });
    REQUIRE(written.wait());
    Child reader = actor([&] {
      limit_descriptors(1024);
      const Session session = world.connect();
      std::vector<shmb_attach_item> items(kCount);
      for (std::size_t i = 0; i < kCount; ++i) items[i].id = &shared->ids[i];
      std::vector<shmb_region*> raw(kCount);
      NEED(shmb_attach_many(session.c(), items.data(), kCount, 0, raw.data(), nullptr, nullptr) == SHMB_OK);
      std::vector<shmbroker::ReadOnlyRegion> regions;
      for (shmb_region* one : raw) regions.emplace_back(one);
      NEED(open_descriptors() < 64);
      for (std::size_t i = 0; i < kCount; ++i) NEED(holds(regions[i].bytes(), i));
    });
    CHECK(reader.wait() == 0);
    done.open();
    CHECK(writer.wait() == 0);
  }
}

TEST_CASE("a full descriptor table in the client is a sentence, and the same call works once there is room") {
  in_every_world([](World& world) {
    Child client = actor([&] {
      limit_descriptors(200);
      const Session session = world.connect();
      const Region held = session.create(4096);
      std::vector<int> taken;
      for (int fd; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(fd);
      NEED(errno == EMFILE);
      const auto created = session.try_create(4096);
      NEED_STATUS(created, no_descriptors);
      NEED(!sentence_of(created).empty());
      NEED_STATUS(session.try_attach(held.id()), no_descriptors);
      NEED_STATUS(Session::try_connect({.socket = world.socket()}), no_descriptors);
      NEED_STATUS(session.try_ping(), ok);
      ::close(taken.back());
      NEED_STATUS(session.try_create(4096), ok);
      for (const int fd : taken) ::close(fd);
      NEED_STATUS(Session::try_connect({.socket = world.socket()}), ok);
    });
    CHECK(client.wait() == 0);
  });
}

TEST_CASE("a full descriptor table in the broker refuses creates with what to raise, serves all else, and recovers") {
  for (BrokerOptions options : harness::engines_and_kernels()) {
    const std::string name = harness::name_of(options);
    CAPTURE(name);
    options.config = "descriptors = 150\ndescriptors_reserved = 20\n";
    World world(options);
    const Session session = world.connect(), other = world.connect();
    std::vector<Region> regions;
    std::string why;
    while (regions.size() < 200) {
      auto region = session.try_create(4096);
      if (!region) {
        CHECK((region.error().status() == Status::no_descriptors || region.error().status() == Status::limit));
        why = region.error().what();
        break;
      }
      regions.push_back(std::move(*region));
    }
    CAPTURE(why);
    CHECK(regions.size() > 50);
    CHECK(regions.size() < 150);
    CHECK(why.find("descriptor") != std::string::npos);
    CHECK(status_of(other.try_ping()) == Status::ok);
    CHECK(status_of(other.try_attach_writable(regions[0].id())) == Status::ok);
    CHECK(other.stat(regions[0].id()).bytes == 4096);
    CHECK(status_of(Session::try_connect({.socket = world.broker().admin(), .admin = false})) == Status::ok);
    regions.pop_back();
    CHECK(eventually([&] { return other.try_create(4096).has_value(); }));
  }
}

TEST_CASE("too little address space is a sentence and leaves no lease; smaller regions still come") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("sanitizers need all address space");
  in_every_world([](World& world) {
    Child client = actor([&] {
      const Session session = world.connect();
      const Region seen = session.create(4096);
      const rlimit limit{256 * MiB, 256 * MiB};
      NEED(::setrlimit(RLIMIT_AS, &limit) == 0);
      const auto refused = session.try_create(512 * MiB, {.populate = false});
      NEED(!refused);
      NEED(refused.error().status() == Status::system || refused.error().status() == Status::no_memory);
      NEED(refused.error().system_errno() == ENOMEM);
      NEED(!sentence_of(refused).empty());
      Region small = session.create(8 * MiB);
      fill(small.bytes(), 1);
      NEED(holds(small.bytes(), 1));
    });
    REQUIRE(client.wait() == 0);
  });
}

namespace {

// A memory cgroup below this process's, gone with its owner. Version 1, or version 2 where its controller may be used.
class MemoryGroup {
 public:
  MemoryGroup() {
    std::ifstream own("/proc/self/cgroup");
    for (std::string line; std::getline(own, line);) {
      const bool second = line.starts_with("0::");
      if (!second && line.find(":memory:") == line.npos) continue;
      const std::string path = line.substr(line.rfind(':') + 1);
      for (const std::string& below : {path, std::string("/")})
        if (attempt((second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + below, second)) return;
    }
  }
  ~MemoryGroup() {
    if (path_.empty()) return;
    // The kernel takes the last member's leaving in late.
    eventually([&] { return ::rmdir(path_.c_str()) == 0; });
  }
  bool made() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  bool enter() const { return write(path_ + "/cgroup.procs", std::to_string(::getpid())); }

 private:
  static bool write(const std::string& file, const std::string& text) {
    const int fd = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
    const bool done = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    if (fd >= 0) ::close(fd);
    return done;
  }
  bool attempt(const std::string& parent, bool second) {
    const std::string path = parent + (parent.ends_with('/') ? "" : "/") + "shmbt-" + std::to_string(::getpid());
    if (::mkdir(path.c_str(), 0755) != 0) return false;
    if (!write(path + (second ? "/memory.max" : "/memory.limit_in_bytes"), std::to_string(96 * MiB))) {
      ::rmdir(path.c_str());
      return false;
    }
    path_ = path;
    return true;
  }
  std::string path_;
};

}  // namespace

TEST_CASE(
    "a region over the limit of the client's cgroup is refused with the cgroup's path, before anything is killed") {
  const MemoryGroup group;
  if (!group.made()) SKIP_CASE("no memory cgroup can be made here");
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world({.engine = engine});
    Child client = actor([&] {
      NEED(group.enter());
      const Session session = world.connect();
      const auto refused = session.try_create(256 * MiB);
      NEED_STATUS(refused, no_memory);
      NEED(sentence_of(refused).find(group.path()) != std::string::npos);
      NEED(refused.error().detail().scope == SHMB_SCOPE_CGROUP);
      NEED(refused.error().detail().limit == 96 * MiB);
      NEED(refused.error().detail().asked == 256 * MiB);
      Region region = session.create(32 * MiB);
      fill(region.bytes(), 1);
      NEED(holds(region.bytes(), 1));
      // Unpopulated it may be larger than the limit: populating it then fails with an errno.
      const Region sparse = session.create(256 * MiB, {.populate = false});
      NEED_STATUS(sparse.try_populate(0, 256 * MiB), no_memory);
    });
    CHECK(client.wait() == 0);
  }
}
