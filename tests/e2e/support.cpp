// SPDX-License-Identifier: Apache-2.0
// See support.hpp.
#include "tests/e2e/support.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace e2e {
namespace {

// splitmix64
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

int guarded(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "a process of this test: %s\n", failure.what());
    return 1;
  }
}

}  // namespace

void failed(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

std::string name_of(Status status) { return shmb_status_name(static_cast<int>(status)); }

Child actor(const std::function<void()>& body) {
  return Child::run([&] { return guarded(body); });
}

Child actor_as(unsigned uid, const std::function<void()>& body) {
  return Child::run_as(uid, uid, [&] { return guarded(body); });
}

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  std::uint64_t word = 0;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof word) {
    word = mixed(seed + at);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

bool holds(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::uint64_t word = 0;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof word) {
    word = mixed(seed + at);
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at)) != 0) return false;
  }
  return true;
}

bool all_zero(std::span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

World::Version World::version_of(const std::string& text) {
  Version version;
  if (!text.empty()) std::sscanf(text.c_str(), "%d.%d", &version.major, &version.minor);
  return version;
}

World::World(const BrokerOptions& options)
    : version_(version_of(options.kernel)), kernel_(version_.major, version_.minor), broker_(options) {
  if (!broker_.running()) FAIL("the broker did not start: " << broker_.log());
}

Session World::connect() const { return e2e::connect(socket()); }

bool World::kernel_is_before(int major, int minor) const {
  return version_.major != 0 && std::pair(version_.major, version_.minor) < std::pair(major, minor);
}

void in_every_world(const std::function<void(World&)>& body, bool system) {
  for (BrokerOptions options : harness::engines_and_kernels()) {
    options.system = system;
    const std::string name = harness::name_of(options);
    CAPTURE(name);
    World world(options);
    body(world);
  }
}

}  // namespace e2e
