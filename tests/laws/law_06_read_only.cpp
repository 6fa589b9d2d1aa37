// SPDX-License-Identifier: Apache-2.0
// Law 6: read-only is read-only. System mode: mode bits bound every uid; private mode: the first read-only grant closes
// writing for ever; publish closes it in both. Every way to write that we know is tried, as unprivileged users.
//
// To see it fail: in daemon/ledger/grant.cpp, closes_writing, answer false instead of
//   return (rights & SHMBW_RIGHT_MAP_WRITE) == 0 && !host.mode_bits_bind(session.uid)
// (private mode), or in daemon/ledger/region.cpp, make_memory, sys::set_mode(fd->get(), 0600) (system mode).
//
// SHMB_READ_ONLY_TABLE=docs/read-only-table.md test_laws -tc='law 6: no way*'   writes what was measured.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "base/compat.hpp"
#include "base/kernel.hpp"
#include "tests/laws/law.hpp"
#include "tests/support/shared.hpp"

using namespace laws;

namespace {

constexpr std::size_t kSmallLength = 64 << 10;
constexpr uid_t kOwner = 65530, kOther = 65531;

// The outcome of one call, as the table shows it.
std::string told(bool worked) { return worked ? "**works**" : std::string(::strerrorname_np(errno)); }

// ---- the attempts; each gets the reader's descriptor and its mapping

struct Reader {
  int fd;
  std::byte* map;  // PROT_READ
  pid_t broker, writer;
};

// All that can be done with a descriptor once it is open for writing; "opens" if nothing of it changes a byte.
std::string write_through(int fd) {
  if (fd < 0) return told(false);
  std::string result;
  const auto add = [&](const char* name, bool worked) {
    if (worked) result += std::string(result.empty() ? "" : ", ") + name + " **works**";
  };
  void* map = ::mmap(nullptr, kSmallLength, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  add("mmap", map != MAP_FAILED);
  if (map != MAP_FAILED) {
    *static_cast<volatile char*>(map) = 'X';
    ::munmap(map, kSmallLength);
  }
  add("write", ::pwrite(fd, "X", 1, 0) == 1);
  add("truncate", ::ftruncate(fd, 0) == 0);
  add("punch", ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
  ::close(fd);
  return result.empty() ? "opens; mmap, write, truncate and punch fail" : "opens; " + result;
}

std::string reopen(const std::string& path, int flags) {
  return write_through(::open(path.c_str(), flags | O_CLOEXEC));
}
std::string self(const Reader& reader) { return "/proc/self/fd/" + std::to_string(reader.fd); }

// Every descriptor of another process: the best that any of them gives.
std::string through_process(pid_t process) {
  std::string best = "ENOENT";
  for (int number = 0; number < 64; ++number) {
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    char target[512];
    const ssize_t size = ::readlink(path.c_str(), target, sizeof target);
    if (size < 0) {
      if (best == "ENOENT") best = told(false);
      continue;
    }
    if (!std::string_view(target, static_cast<std::size_t>(size)).starts_with("/memfd:shmb:")) continue;
    return reopen(path, O_RDWR);
  }
  return best;
}

struct Attempt {
  const char* name;
  std::string (*make)(const Reader&);
};

const Attempt kAttempts[] = {
    {"`mmap` with `PROT_WRITE`, shared",
     [](const Reader& r) {
       void* map = ::mmap(nullptr, kSmallLength, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
       const std::string result = told(map != MAP_FAILED);
       if (map != MAP_FAILED) *static_cast<volatile char*>(map) = 'X', ::munmap(map, kSmallLength);
       return result;
     }},
    {"`mprotect` of the read-only mapping",
     [](const Reader& r) {
       const bool worked = ::mprotect(r.map, 4096, PROT_READ | PROT_WRITE) == 0;
       const std::string result = told(worked);
       if (worked) *reinterpret_cast<volatile char*>(r.map) = 'X', ::mprotect(r.map, 4096, PROT_READ);
       return result;
     }},
    {"`write`", [](const Reader& r) { return told(::pwrite(r.fd, "X", 1, 0) == 1); }},
    {"`ftruncate` to 0", [](const Reader& r) { return told(::ftruncate(r.fd, 0) == 0); }},
    {"`ftruncate` to twice the size", [](const Reader& r) { return told(::ftruncate(r.fd, 2 * kSmallLength) == 0); }},
    {"`fallocate` punching a hole",
     [](const Reader& r) { return told(::fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0); }},
    {"`madvise(MADV_REMOVE)`", [](const Reader& r) { return told(::madvise(r.map, 4096, MADV_REMOVE) == 0); }},
    {"`F_ADD_SEALS`", [](const Reader& r) { return told(::fcntl(r.fd, F_ADD_SEALS, F_SEAL_WRITE) == 0); }},
    {"`fchmod` to 0666, then reopen for writing",
     [](const Reader& r) {
       const bool changed = ::fchmod(r.fd, 0666) == 0;
       const std::string first = changed ? "fchmod works" : "fchmod " + told(false);
       return first + "; " + reopen(self(r), O_RDWR);
     }},
    {"open `/proc/self/fd/N` for reading and writing", [](const Reader& r) { return reopen(self(r), O_RDWR); }},
    {"open `/proc/self/fd/N` with `O_TRUNC`", [](const Reader& r) { return reopen(self(r), O_WRONLY | O_TRUNC); }},
    {"open `/proc/<broker>/fd/N` for writing", [](const Reader& r) { return through_process(r.broker); }},
};
// Only between uids: a program may trace others of its own uid, which no file mode prevents.
const Attempt kThroughWriter = {
    "open `/proc/<writer>/mem` for writing", [](const Reader& r) {
      const Fd memory = Fd::adopt(::open(("/proc/" + std::to_string(r.writer) + "/mem").c_str(), O_RDWR | O_CLOEXEC));
      return told(static_cast<bool>(memory));
    }};

// ---- the situations: each column of the table

struct Situation {
  const char* name;
  bool system, other_uid, publish, many_writers;
  bool boundary;  // false: documented not to be one
};
const Situation kSituations[] = {
    {"system mode, reader of another uid, writer goes on", true, true, false, false, true},
    {"system mode, reader of the writer's uid, writer goes on", true, false, false, false, true},
    {"system mode, published", true, true, true, false, true},
    {"private mode, one uid, writing closed by the first reader", false, false, false, false, true},
    {"private mode, published", false, false, true, false, true},
    {"private mode, `many_writers` (`ro*`)", false, false, false, true, false},
};

constexpr char kContents = 'o';

// Writer and reader are processes of their own; what they tell each other and us stands in memory all share.
struct Stage {
  Token ticket;
  pid_t writer = 0, broker = 0;
  char results[16384] = {};
};

struct Play {
  const Situation& situation;
  support::Shared<Stage> stage;
  Gate ready, done;

  int write(const std::string& socket) {
    auto session = must(try_open(socket));
    CreateItem item = named("guarded", kSmallLength);
    if (situation.many_writers) item.flags |= SHMBW_CREATE_MANY_WRITERS;
    auto region = must(create_region(session, item));
    std::memset(region->data(), kContents, kSmallLength);
    if (situation.publish) must(region->publish(soon()));
    stage->ticket = must(region->make_ticket(SHMBW_RIGHT_MAP_READ, 1, 0, soon())).token;
    stage->writer = ::getpid();
    ready.open();
    done.wait();
    if (!situation.boundary) return 0;
    for (std::size_t i = 0; i < kSmallLength; ++i)
      if (region->data()[i] != std::byte{kContents}) return 5;
    if (!situation.publish) region->data()[7] = std::byte{'n'};  // it may still
    return 0;
  }

  int read(const std::string& socket) {
    if (!ready.wait()) return 6;
    auto session = must(try_open(socket));
    AttachItem item;
    item.target = Target::with_ticket(stage->ticket);
    auto region = must(attach_region(session, item));
    auto fd = must(region->descriptor(soon()));
    const Reader reader{fd.get(), region->data(), stage->broker, stage->writer};
    std::string results;
    bool changed = false;
    const auto attempt = [&](const Attempt& what) {
      results += what.make(reader);
      struct stat facts{};
      (void)::fstat(fd.get(), &facts);
      const bool cut = facts.st_size != static_cast<off_t>(kSmallLength);
      if (!changed && (cut || region->data()[0] != std::byte{kContents})) {
        changed = true;
        results += " (bytes changed)";
      }
      results += '\n';
    };
    for (const Attempt& what : kAttempts) attempt(what);
    if (situation.other_uid) attempt(kThroughWriter);
    else results += "not bounded: one uid\n";
    results.copy(stage->results, sizeof stage->results - 1);
    return 0;
  }
};

// A broker that an unprivileged user can execute also where the build tree is closed to him.
class ProgramForAll {
 public:
  ProgramForAll() {
    ::chmod(folder_.path().c_str(), 0755);
    std::ofstream(folder_.file("d"), std::ios::binary)
        << std::ifstream(BrokerFixture::program(), std::ios::binary).rdbuf();
    ::chmod(folder_.file("d").c_str(), 0755);
  }
  void use() const { ::setenv("SHMBROKERD_TESTSEAM", folder_.file("d").c_str(), 1); }

 private:
  harness::TempDir folder_;
};

std::vector<std::string> measure(const Situation& situation, const std::string& engine) {
  Play play{situation, {}, {}, {}};
  BrokerOptions options;
  options.engine = engine;
  int written = -1, read = -1;
  if (situation.system) {
    options.system = true;
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    play.stage->broker = broker.pid();
    const uid_t reader_uid = situation.other_uid ? kOther : kOwner;
    auto writer = Child::run_as(kOwner, kOwner, [&] { return play.write(broker.socket()); });
    auto reader = Child::run_as(reader_uid, reader_uid, [&] { return play.read(broker.socket()); });
    read = reader.wait();
    play.done.open();
    written = writer.wait();
    CHECK(broker.books().empty());
  } else {
    const ProgramForAll program;
    auto user = Child::run_as(kOwner, kOwner, [&] {
      program.use();
      BrokerFixture broker(options);
      if (!broker.running()) return 50;
      play.stage->broker = broker.pid();
      auto writer = Child::run([&] { return play.write(broker.socket()); });
      auto reader = Child::run([&] { return play.read(broker.socket()); });
      const int how = reader.wait();
      play.done.open();
      const int first = writer.wait();
      if (!broker.books().empty()) return 51;
      return how != 0 ? 100 + how : first;
    });
    written = user.wait();
    read = 0;
  }
  CHECK(written == 0);
  CHECK(read == 0);
  std::vector<std::string> lines;
  std::istringstream text(play.stage->results);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

RawPacket raw_attach(RawClient& client, const shmbw_region_ref& region, std::uint32_t rights) {
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = rights;
  wish.region = region;
  return client.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(&wish, 1));
}
Status outcome(const RawPacket& reply) {
  REQUIRE(reply.ok());
  return static_cast<Status>(reply.element<shmbw_outcome>(0).status);
}

int seals_of(Region& region) {
  auto fd = must(region.descriptor(soon()));
  return ::fcntl(fd.get(), F_GET_SEALS);
}

}  // namespace

TEST_CASE("law 6: no way to write is left to a reader, in either mode, with and without the writer's leave") {
  if (!harness::can_change_uid()) SKIP_CASE("other users need root");
  std::map<std::string, std::vector<std::string>> first;
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    for (const Situation& situation : kSituations) {
      CAPTURE(situation.name);
      const auto results = measure(situation, engine);
      REQUIRE(results.size() == std::size(kAttempts) + 1);
      for (std::size_t i = 0; i < results.size(); ++i) {
        const std::string attempt = i < std::size(kAttempts) ? kAttempts[i].name : kThroughWriter.name;
        CAPTURE(attempt);
        CAPTURE(results[i]);
        if (!situation.boundary) continue;
        CHECK(results[i].find("**works**") == std::string::npos);
        CHECK(results[i].find("changed") == std::string::npos);
      }
      auto [known, fresh] = first.try_emplace(situation.name, results);
      if (!fresh) CHECK(known->second == results);  // the engine has no say in it
    }
  }
  std::ostringstream table;
  table << "| attempt of a reader |";
  for (const Situation& situation : kSituations) table << ' ' << situation.name << " |";
  table << "\n| --- |";
  for (std::size_t i = 0; i < std::size(kSituations); ++i) table << " --- |";
  table << '\n';
  for (std::size_t i = 0; i <= std::size(kAttempts); ++i) {
    table << "| " << (i < std::size(kAttempts) ? kAttempts[i].name : kThroughWriter.name) << " |";
    for (const Situation& situation : kSituations) table << ' ' << first[situation.name][i] << " |";
    table << '\n';
  }
  MESSAGE(table.str());
  const char* file = std::getenv("SHMB_READ_ONLY_TABLE");
  if (file == nullptr) return;
  std::ofstream(file)
      << "# Read-only, as measured\n\n"
         "Each row is an attempt of a reader to change a region that it was given read-only. The process has no\n"
         "privileges, and uses the descriptor and the mapping that the library gave it.\n"
         "`tests/laws/law_06_read_only.cpp` wrote the table on Linux "
      << kernel().version.major << "." << kernel().version.minor
      << ". To measure again:\n\n"
         "    SHMB_READ_ONLY_TABLE=docs/read-only-table.md build/gcc/tests/laws/test_laws -tc='law 6: no way*'\n\n"
      << table.str()
      << "\n\"opens\" means that the reader gets a descriptor and can write nothing through it. The seals are in the\n"
         "file, not in the descriptor. In private mode all programs are of one uid. So a reader may also trace the\n"
         "writer, which no seal and no mode prevents; the table is about the region. With `many_writers` in private\n"
         "mode read-only is no boundary, and `shmbroker list` shows it as `ro*`.\n";
}

TEST_CASE("law 6: the seals of a region from birth to publishing") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto other = open(broker);
    auto region = must(create_region(session, named("kv", kSmallLength)));
    const std::string address = "#" + std::to_string(region->facts().group) + "/kv";
    const int birth = F_SEAL_GROW | F_SEAL_SHRINK | (kernel().exec_seal ? F_SEAL_EXEC : 0);
    CHECK(seals_of(*region) == birth);
    {
      auto fd = must(region->descriptor(soon()));
      struct stat facts{};
      REQUIRE(::fstat(fd.get(), &facts) == 0);
      CHECK((facts.st_mode & 07777) == 0600);
      CHECK(::ftruncate(fd.get(), 0) != 0);
      CHECK(::ftruncate(fd.get(), 1 << 20) != 0);
    }
    auto writer = must(attach_region(other, at(address, kReadWrite)));
    CHECK(seals_of(*region) == birth);
    writer.reset();
    auto reader = must(attach_region(other, at(address)));
    CHECK(seals_of(*reader) == (birth | F_SEAL_FUTURE_WRITE));
    region->data()[0] = std::byte{3};  // its mapping is older than the seal
    CHECK(reader->data()[0] == std::byte{3});
    CHECK(status_of(attach_region(other, at(address, kReadWrite))) == Status::write_closed);
    must(region->publish(soon()));
    CHECK(seals_of(*reader) == (birth | F_SEAL_FUTURE_WRITE | F_SEAL_WRITE | F_SEAL_SEAL));
    CHECK(status_of(attach_region(other, at(address, kReadWrite))) == Status::write_closed);
    CHECK(region->data()[0] == std::byte{3});
    must(region->release(kReleaseUnname));
  });
}

TEST_CASE("law 6: publishing while a forked child maps the region is refused, and done when the child is gone") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto region = must(create_region(session, named("kv", kSmallLength)));
    region->data()[0] = std::byte{1};
    Gate finish;
    auto child = Child::run([&] {
      finish.wait();
      return 0;
    });
    auto refused = region->publish(soon());
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().status == Status::still_mapped);
    CHECK(refused.error().sentence.find("forked child") != std::string::npos);
    region->data()[1] = std::byte{2};  // as before
    finish.open();
    CHECK(child.wait() == 0);
    must(region->publish(soon()));
    CHECK(region->data()[0] == std::byte{1});
    CHECK(region->data()[1] == std::byte{2});
    must(region->release(kReleaseUnname));
  });
}

TEST_CASE("law 6: no read-only descriptor leaves before every writer has said that it has mapped") {
  for (const bool dies : {false, true})
    on_each_engine([dies](BrokerFixture& broker) {
      CAPTURE(dies);
      RawClient writer = RawClient::connect(broker.socket()), reader = RawClient::connect(broker.socket());
      REQUIRE(writer.hello().ok());
      REQUIRE(reader.hello().ok());
      const RawPacket made = writer.create(kSmallLength);
      REQUIRE(made.ok());
      const auto region = made.element<shmbw_create_reply>(0).region;
      CHECK(outcome(raw_attach(reader, region, SHMBW_RIGHT_MAP_READ)) == Status::not_ready);
      RawClient second = RawClient::connect(broker.socket());
      REQUIRE(second.hello().ok());
      CHECK(outcome(raw_attach(second, region, kReadWrite)) == Status::ok);
      const auto ready = [&](RawClient& client) {
        shmbw_ready said{};
        said.region = region;
        std::vector<std::byte> buffer(128);
        wire::Writer packet(buffer);
        packet.begin_batch<shmbw_ready>(SHMBW_OP_READY, 0, 1, SHMBW_HEADER_NO_REPLY);
        packet.element(0, said);
        REQUIRE(client.send(packet.finish(0)));
        REQUIRE(client.status().ok());
      };
      ready(writer);
      CHECK(outcome(raw_attach(reader, region, SHMBW_RIGHT_MAP_READ)) == Status::not_ready);
      if (dies) second.close();  // ends the wait as well
      else ready(second);
      CHECK(eventually([&] { return outcome(raw_attach(reader, region, SHMBW_RIGHT_MAP_READ)) == Status::ok; }));
      const RawPacket granted = raw_attach(reader, region, SHMBW_RIGHT_MAP_READ);
      CHECK(outcome(granted) == Status::ok);
      REQUIRE(granted.fds.size() == 1);
      CHECK((::fcntl(granted.fds[0].get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
      CHECK((::fcntl(granted.fds[0].get(), F_GET_SEALS) & F_SEAL_FUTURE_WRITE) != 0);
      CHECK(outcome(raw_attach(second.connected() ? second : writer, region, kReadWrite)) == Status::write_closed);
    });
}

TEST_CASE("law 6: a forked child of a writer goes on writing where writing is closed, without a new descriptor") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto region = must(create_region(session, named("kv", kSmallLength)));
    const std::string address = "#" + std::to_string(region->facts().group) + "/kv";
    auto reader = must(attach_region(open(broker), at(address)));
    auto child = Child::run([&] {
      region->data()[0] = std::byte{9};
      if (!session->ping(soon())) return 1;
      for (const auto& row : leases(session))
        if (row.record.pid == static_cast<std::uint32_t>(::getpid()))
          return (row.record.rights & SHMBW_RIGHT_MAP_WRITE) != 0 ? 0 : 2;
      return 3;
    });
    CHECK(child.wait() == 0);
    CHECK(reader->data()[0] == std::byte{9});
    reader.reset();
    must(region->release(kReleaseUnname));
  });
}

TEST_CASE("law 6: a region with many writers says that read-only is no boundary") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    CreateItem item = named("open", kSmallLength);
    item.flags = SHMBW_CREATE_MANY_WRITERS;
    auto region = must(create_region(session, item));
    const std::string address = "#" + std::to_string(region->facts().group) + "/open";
    auto other = open(broker);
    auto reader = must(attach_region(other, at(address)));
    CHECK((reader->facts().flags & SHMBW_REGION_MANY_WRITERS) != 0);
    CHECK((regions(other)[0].record.flags & SHMBW_REGION_MANY_WRITERS) != 0);
    auto writer = must(attach_region(other, at(address, kReadWrite)));  // still to be had
    writer->data()[0] = std::byte{4};
    CHECK(reader->data()[0] == std::byte{4});
    CHECK((seals_of(*region) & F_SEAL_SEAL) != 0);
    must(region->release(kReleaseUnname));
  });
}
