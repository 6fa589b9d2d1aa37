// SPDX-License-Identifier: Apache-2.0
// libFuzzer: sessions of two users that send requests to a broker in this process. The bytes choose who sends which
// request, and fill its fields. So that more than refusals is reached, the lengths of texts are made true, and small
// numbers stand for ids and secrets that the broker has given before. At the end of an input all sessions end, time
// passes, and the books must be empty (tests/daemon/books/books_fixture.cpp, World). Every answer must be well formed.
//
// One broker serves many inputs, one after the other: to start and end its threads took longer than to serve an input.
// The books are empty in between, so an input finds what a fresh one would. It cannot see how many numbers have been
// given out. A finding that does not come again alone comes again with -seed= of its run.
//
// --gpu: the requests are those about GPU memory, and those that make what they name. The number of inputs and requests
// is printed every 100,000 inputs and at the end.
#define DOCTEST_CONFIG_IMPLEMENT
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/sys_file.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_socket.hpp"
#include "proto/wire_fields.hpp"
#include "proto/wire_traits.hpp"
#include "tests/daemon/books/gpu_client.hpp"

namespace {

using namespace shmb;
using namespace shmb::daemon::test;

constexpr std::size_t kClients = 6, kMostRequests = 64;
// The clock goes on by a month with each: a thousand months still fit into 64 bits of nanoseconds.
constexpr std::uint64_t kInputsOfWorld = 1000;

bool gpu_alone = false;

struct Counts {
  std::uint64_t inputs = 0, requests = 0, of_gpus = 0;
  void print() const {
    std::fprintf(stderr, "%llu inputs, %llu requests, %llu of them about GPU memory\n",
                 static_cast<unsigned long long>(inputs), static_cast<unsigned long long>(requests),
                 static_cast<unsigned long long>(of_gpus));
  }
} counts;

// The bytes of one input, and zeros behind them.
class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> left) : left_(left) {}
  bool done() const { return left_.empty(); }
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    const std::uint8_t first = left_.front();
    left_ = left_.subspan(1);
    return first;
  }
  void fill(void* to, std::size_t size) {
    const std::size_t some = std::min(size, left_.size());
    std::memcpy(to, left_.data(), some);
    left_ = left_.subspan(some);
  }

 private:
  std::span<const std::uint8_t> left_;
};

// Words of 8 bytes that the broker has sent: ids, and halves of secrets.
struct Seen {
  static constexpr std::size_t kMost = 128;
  std::vector<std::array<std::uint8_t, 16>> words;
  std::size_t next = 0;  // the oldest, once there are so many
  void note(wire::Bytes packet) {
    for (std::size_t at = sizeof(shmbw_header); at + 16 <= packet.size() && at < 256; at += 8) {
      std::array<std::uint8_t, 16> word;
      std::memcpy(word.data(), packet.data() + at, sizeof word);
      if (words.size() < kMost) words.push_back(word);
      else words[next++ % kMost] = word;
    }
  }
  template <class Field>
  void put(std::uint8_t which, Field& field) const {
    if (!words.empty())
      std::memcpy(&field, words[which % words.size()].data(), std::min(sizeof field, std::size_t{16}));
  }
};

template <class T>
T filled(Bytes& from, const Seen& seen, std::string& texts) {
  T value{};
  const auto fill = [&](auto&& self, auto& into) -> void {
    wire::visit_fields(into, [&](const char* name, auto& field) {
      using Field = std::remove_reference_t<decltype(field)>;
      const std::string_view called(name);
      if constexpr (std::is_class_v<Field>) {
        self(self, field);
      } else if (called.ends_with("_len")) {
        const std::size_t length = from.byte() % 6;
        for (std::size_t i = 0; i < length; ++i) texts += "ab#1.-"[from.byte() % 6];
        if constexpr (std::is_integral_v<Field>) field = static_cast<Field>(length);
      } else if (!called.starts_with("reserved")) {
        const std::uint8_t how = from.byte();
        if (how < 64) return;  // zero
        if (sizeof(Field) >= 8 && how < 160) return seen.put(from.byte(), field);
        if (how < 224) {
          const std::uint8_t low = from.byte();
          std::memcpy(&field, &low, 1);  // a small number, a few flags
          return;
        }
        from.fill(&field, sizeof field);
      }
    });
  };
  fill(fill, value);
  return value;
}

class Crowd {
 public:
  explicit Crowd(World& world) : world_(world) {}

  void act(Bytes& from) {
    const std::uint8_t who = from.byte() % kClients;
    if (clients_.size() <= who) return clients_.push_back(world_.client(1000 + clients_.size() % 2));
    Client& client = clients_[who];
    const std::uint8_t what = from.byte();
    if (what >= 250 || !client.link().dropped.empty()) {
      client.close();
      client = world_.client(1000 + who % 2);
      return;
    }
    if (what >= 245) return world_.advance(std::int64_t{from.byte()} * 100'000'000);
    client.wait_while_held();  // as the transport: it reads no further request before
    ask(client, request_of(what), from);
  }

  void end() {
    for (Client& client : clients_) client.wait_while_held();
    clients_.clear();
  }

 private:
  static bool about_gpus(std::uint16_t op) { return op >= SHMBW_OP_GPU_DEVICE && op <= SHMBW_OP_GPU_PINNED; }

  static std::uint16_t request_of(std::uint8_t what) {
    constexpr std::uint16_t kFirst = SHMBW_OP_GPU_DEVICE, kLast = SHMBW_OP_GPU_PINNED;
    if (gpu_alone && what >= 32) return static_cast<std::uint16_t>(kFirst + what % (kLast - kFirst + 1));
    return static_cast<std::uint16_t>(2 + what % 63);
  }

  void ask(Client& client, std::uint16_t op, Bytes& from) {
    switch (op) {
#define SHMB_ASK(number, name, batch) \
  case number:                        \
    return send<shmbw_##name, batch>(client, number, from);
      SHMBW_REQUESTS(SHMB_ASK)
#undef SHMB_ASK
      default:
        return;
    }
  }

  template <class T, bool batch>
  void send(Client& client, std::uint16_t op, Bytes& from) {
    wire::Writer out(request_room());
    ++counts.requests;
    counts.of_gpus += about_gpus(op);
    std::string texts;
    const std::uint16_t flags = from.byte() >= 240 ? from.byte() & 7 : 0;
    if constexpr (batch) {
      const std::size_t count = 1 + from.byte() % 3;
      out.begin_batch<T>(op, ++tag_, count, flags);
      for (std::size_t i = 0; i < count; ++i) out.element(i, filled<T>(from, seen_, texts));
    } else {
      out.begin(op, ++tag_, Status::ok, filled<T>(from, seen_, texts), flags);
    }
    out.text(texts);
    if (wire::traits_of(op).fds_in)
      for (std::size_t left = from.byte() % 5; left > 0; --left) client.link().bring(descriptor(from.byte()));
    client.send_only(out.finish(client.link().brought.size()));
    for (const Packet& reply : client.link().replies) {
      (void)reply.view();  // well formed
      seen_.note(reply.bytes);
    }
    client.link().replies.clear();
    client.link().events.clear();
  }

  static Fd descriptor(std::uint8_t which) {
    switch (which % 4) {
      case 0:
        return sys::open("/dev/null", O_RDWR).value();
      case 1:
        return sys::memfd_create("fuzz", false).value();
      case 2: {
        Fd sealed = sys::memfd_create("fuzz", false).value();
        (void)sys::truncate(sealed.get(), 4096);
        (void)sys::add_seals(sealed.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
        return sealed;
      }
      default:
        return std::move(sys::seqpacket_pair().value()[0]);
    }
  }

  World& world_;
  std::vector<Client> clients_;
  Seen seen_;
  std::uint64_t tag_ = 0;
};

doctest::Context asserts;

}  // namespace

// Clang links libFuzzer with operator new of its own, and all of the program with operator delete of allocations.cpp. A
// small quarantine keeps freed memory hot in the caches.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "alloc_dealloc_mismatch=0:quarantine_size_mb=8"; }

extern "C" int LLVMFuzzerInitialize(int* count, char*** words) {
  for (int i = 1; i < *count; ++i) gpu_alone = gpu_alone || std::string_view((*words)[i]) == "--gpu";
  asserts.setAsDefaultForAssertsOutOfTestCases();
  asserts.setAssertHandler([](const doctest::AssertData& failed) {
    if (!failed.m_failed) return;
    std::fprintf(stderr, "%s:%d: %s: %s\n", failed.m_file, failed.m_line, failed.m_expr, failed.m_decomp.c_str());
    std::abort();
  });
  static const FakeGpus gpus;
  std::atexit([] { counts.print(); });
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::unique_ptr<World> world;
  if (counts.inputs % kInputsOfWorld == 0) {
    shmb::daemon::Config config = system_config();
    config.limits.uid_regions = 64;
    world = std::make_unique<World>(config);
    world->check_at_end = false;  // it is checked after each input
  }
  Bytes from({data, size});
  {
    Crowd crowd(*world);
    for (std::size_t requests = 0; requests < kMostRequests && !from.done(); ++requests) crowd.act(from);
    crowd.end();
  }
  world->expect_empty();
  world->log.clear();
  if (++counts.inputs % 100'000 == 0) counts.print();
  return 0;
}
