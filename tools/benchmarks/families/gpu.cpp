// SPDX-License-Identifier: Apache-2.0
// The broker's own part of publishing and opening GPU memory, against a bare exchange of as many descriptors whose
// receiver asks the kernel the same about each. No driver takes part: the exports are memfds, which the broker of the
// test build takes for a driver's, and nobody imports them. Only a run on a GPU shows what a GPU adds.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/sys_gpu.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "client/calls/gpu_calls.hpp"
#include "client/session/connect.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"

namespace shmb::bench {
namespace {

constexpr const char* kPci = "0000:65:00.0";
constexpr client::GpuUuid kUuid{0xc0};

void make_driver_files(const std::string& folder) {
  std::filesystem::create_directories(folder + "/gpus/" + kPci);
  std::ofstream(folder + "/gpus/" + kPci + "/information")
      << "GPU UUID: \t GPU-c0000000-0000-0000-0000-000000000000\nDevice Minor: \t 0\n";
  std::ofstream(folder + "/fake-nvidia0") << "node";
}

template <class T>
T need(Result<T> result) {
  if (!result) give_up(result.error().sentence);
  return std::move(*result);
}
template <class T>
T need(Sys<T> result, const char* what) {
  if (!result) give_up(std::string(what) + ": " + std::to_string(result.error().value));
  return std::move(*result);
}

// Two opens of each chunk, as two calls to the driver would give.
struct Exports {
  std::vector<Fd> files;
  std::vector<client::GpuChunk> chunks;
  explicit Exports(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      files.push_back(need(sys::memfd_create("fakecuda:bench", false), "memfd_create"));
      const std::string path = "/proc/self/fd/" + std::to_string(files.back().get());
      files.push_back(need(sys::open(path.c_str(), O_RDWR), "open"));
      chunks.push_back({files[2 * i].get(), files[2 * i + 1].get()});
    }
  }
  std::vector<int> numbers() const {
    std::vector<int> out;
    for (const Fd& fd : files) out.push_back(fd.get());
    return out;
  }
};

// Takes what comes, or sends as many shares as it is asked for; packets of the sizes that ours have.
class BareHolder {
 public:
  explicit BareHolder(const Exports& exports) : pair_(need(sys::seqpacket_pair(), "socketpair")) {
    child_ = Child::start(Core::server, [this, &exports] { return serve(exports); });
  }

  double publish(const std::vector<int>& fds, std::size_t request, std::size_t reply) {
    return timed([&] { exchange({0, static_cast<std::uint32_t>(reply)}, request, fds); });
  }
  double open(std::uint32_t shares, std::size_t request, std::size_t reply) {
    return timed([&] { exchange({shares, static_cast<std::uint32_t>(reply)}, request, {}); });
  }

 private:
  struct Ask {
    std::uint32_t shares, reply;
  };

  void exchange(Ask ask, std::size_t request, const std::vector<int>& fds) {
    std::vector<std::byte> packet(std::max(request, sizeof ask));
    std::memcpy(packet.data(), &ask, sizeof ask);
    if (!sys::send(pair_[0].get(), packet, {}, fds, true)) give_up("sending to the bare holder");
    std::vector<Fd> got;
    if (!sys::receive(pair_[0].get(), buffer_, got, true)) give_up("the bare holder's answer");
  }

  // The checks of every receiver of exports: how each is open, what it is (of a memfd only its link tells, of a
  // driver's file statx does, in a fifth of the time), and that keeper and share are two open files.
  static bool looks_right(const std::vector<Fd>& held) {
    for (const Fd& fd : held) {
      char link[256];
      const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
      const ssize_t size = ::readlink(path.c_str(), link, sizeof link);
      const std::string_view name(link, size > 0 ? static_cast<std::size_t>(size) : 0);
      if ((::fcntl(fd.get(), F_GETFL) & O_PATH) != 0 || !name.starts_with("/memfd:fakecuda:")) return false;
    }
    for (std::size_t i = 0; i + 1 < held.size(); i += 2) {
      auto same = sys::same_open_file(held[i].get(), held[i + 1].get());
      if (!same || *same) return false;
    }
    return true;
  }

  int serve(const Exports& exports) {
    std::vector<std::byte> reply(SHMBW_MAX_MESSAGE);
    for (;;) {
      std::vector<Fd> held;
      auto got = sys::receive(pair_[1].get(), buffer_, held, true);
      if (!got || got->end_of_file) return 0;
      if (!looks_right(held)) return 1;
      Ask ask{};
      std::memcpy(&ask, buffer_.data(), sizeof ask);
      std::vector<int> shares;
      for (std::uint32_t i = 0; i < ask.shares; ++i) shares.push_back(exports.chunks[i].share);
      if (!sys::send(pair_[1].get(), std::span(reply).first(ask.reply), {}, shares, true)) return 1;
    }
  }

  std::array<Fd, 2> pair_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(SHMBW_MAX_MESSAGE);
  Child child_;
};

std::shared_ptr<client::Session> connect_and_name(const std::string& socket) {
  client::ConnectOptions options;
  options.socket = socket;
  auto session = need(client::connect(options));
  (void)need(client::gpu_device(*session, kUuid, kPci, -1, client::Deadline::after(60'000'000'000)));
  return session;
}

client::GpuPublish wish_for(const Exports& exports) {
  client::GpuPublish wish;
  wish.bytes = exports.chunks.size() << 21;
  if (exports.chunks.size() > 1) wish.chunk_bytes = 1 << 21;
  wish.uuid = kUuid;
  wish.chunks = exports.chunks;
  return wish;
}

void compare(Bench& bench, const std::string& name, const std::string& engine, const std::function<double()>& ours,
             const std::function<double()>& floor) {
  const int block = bench.times(200, 3);
  auto median_of = [&](const std::function<double()>& one) {
    Samples samples;
    for (int i = 0; i < block; ++i) samples.add(one());
    return samples.median();
  };
  Record record = make_record(
      name, "us", alternate(bench.times(15), [&] { return median_of(ours); }, [&] { return median_of(floor); }));
  record.engine = engine;
  bench.record(std::move(record));
}

}  // namespace

void run_gpu(Bench& bench) {
  TemporaryFolder files;
  make_driver_files(files.path());
  Settings settings = bench.settings();
  settings.broker = SHMB_BENCH_SEAM_BROKER;
  auto broker = BrokerProcess::start(settings, Core::server, settings.engine, {"--seam", "gpu=" + files.path()});
  pin(Core::client);
  const auto deadline = [] { return client::Deadline::after(60'000'000'000); };
  auto session = connect_and_name(broker.socket());
  for (std::size_t chunks : {1, 16, 126}) {
    const Exports exports(chunks);
    const std::vector<int> numbers = exports.numbers();
    BareHolder bare(exports);
    const client::GpuPublish wish = wish_for(exports);
    const std::size_t front = sizeof(shmbw_header) + sizeof(shmbw_batch);
    auto published = [&] {
      return need(std::move(need(client::gpu_publish(*session, {&wish, 1}, deadline())).front()));
    };
    auto release = [&](shmbw_region_ref region) {
      const client::GpuRelease one{region, 1, false};
      if (!client::gpu_release(*session, {&one, 1}, deadline()) || !session->ping(deadline()))
        give_up("releasing a GPU region");
    };
    compare(
        bench, fmt::format("gpu.publish.{}", chunks), broker.engine(),
        [&] {
          shmbw_region_ref region{};
          const double took = timed([&] { region = published().region; });
          release(region);
          return took;
        },
        [&] {
          return bare.publish(numbers, front + sizeof(shmbw_gpu_publish), front + sizeof(shmbw_gpu_publish_reply));
        });
    const shmbw_region_ref region = published().region;
    client::GpuRequest open;
    open.by = SHMBW_ATTACH_BY_ID;
    open.region = region;
    compare(
        bench, fmt::format("gpu.open.{}", chunks), broker.engine(),
        [&] {
          const double took = timed([&] { (void)need(client::gpu_open(*session, {&open, 1}, deadline())); });
          release(region);
          return took;
        },
        [&] {
          return bare.open(static_cast<std::uint32_t>(chunks), front + sizeof(shmbw_gpu_open),
                           front + sizeof(shmbw_gpu_open_reply));
        });
    release(region);
  }
  pin(Core::any);
}

}  // namespace shmb::bench
