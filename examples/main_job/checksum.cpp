// SPDX-License-Identifier: Apache-2.0
// The kernel's figures show that no process copies the region. With five mappings of the same pages, the proportional
// share (Pss) of each is a fifth. The private memory (RssAnon) of none grows with the size of the region.
#include <openssl/evp.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <shmbroker/shmbroker.hpp>
#include <sstream>
#include <vector>

#include "parts.hpp"
#include "worker.hpp"

namespace main_job {
namespace {

std::string sha256_of(std::span<const std::byte> bytes) {
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  require(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
              EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1 &&
              EVP_DigestFinal_ex(context.get(), digest, &size) == 1,
          "libcrypto failed");
  std::string text;
  for (unsigned i = 0; i < size; ++i) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", digest[i]);
    text += hex;
  }
  return text;
}

// Bytes of a "Name:   123 kB" line.
std::uint64_t kilobytes(const std::string& line) {
  std::istringstream in(line.substr(line.find(':') + 1));
  std::uint64_t value = 0;
  in >> value;
  return value << 10;
}

std::uint64_t private_memory() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("RssAnon:")) return kilobytes(line);
  return 0;
}

// This process' share of the mapping that starts at `address`.
std::uint64_t share_of(const void* address) {
  char wanted[32];
  std::snprintf(wanted, sizeof wanted, "%lx-", reinterpret_cast<unsigned long>(address));
  std::ifstream in("/proc/self/smaps");
  bool ours = false;
  for (std::string line; std::getline(in, line);) {
    if (line.find("-") < 17 && line.find("-") < line.find(":")) ours = line.starts_with(wanted);
    if (ours && line.starts_with("Pss:")) return kilobytes(line);
  }
  return 0;
}

struct Seen {
  std::uint64_t grown = 0, share = 0;
};

void map_and_check(Line parent, const std::string& group, const std::string& address, const std::string& expected) {
  (void)sha256_of({});  // libcrypto's own memory comes first
  auto session = shmbroker::Session::connect({.program = "checksum", .start = false});
  session.join(session.create_group({.name = group, .adopt_existing = true}).token);
  const std::uint64_t before = private_memory();
  const auto region = session.attach(address);
  const std::string sum = sha256_of(region.bytes());
  require(sum == expected, "the SHA-256 is " + sum + ", the file's is " + expected);
  parent.say(private_memory() - std::min(before, private_memory()));
  parent.hear();  // all five map it now
  parent.say(share_of(region.data()));
  parent.hear();  // and all five have looked
}

}  // namespace

void checksum(const std::string& address, const std::string& expected) {
  const std::vector<std::string> groups{"alpha", "alpha", "beta", "beta", "gamma"};
  std::vector<Worker> workers;
  for (const std::string& group : groups)
    workers.push_back(
        Worker::start("checksum in " + group, [&](Line parent) { map_and_check(parent, group, address, expected); }));
  Seen seen;
  for (Worker& worker : workers) seen.grown = std::max(seen.grown, worker.line().hear());
  for (Worker& worker : workers) worker.line().say(0);
  for (Worker& worker : workers) seen.share += worker.line().hear();
  const auto stat = shmbroker::Session::connect({.program = "checksum", .start = false}).stat(address);
  for (Worker& worker : workers) worker.line().say(0);
  for (Worker& worker : workers) require(worker.finish(), "a process failed");

  std::printf(
      "SHA-256 %.16s... five times right; the five shares of its pages sum up to %s, private memory grew by at most "
      "%s\n",
      expected.c_str(), mebibytes(seen.share).c_str(), mebibytes(seen.grown).c_str());
  require(stat.holders == groups.size(), "the broker counts " + std::to_string(stat.holders) + " holders");
  require(seen.share <= stat.bytes + stat.bytes / 10, "somebody has pages of their own");
  require(seen.grown < stat.bytes / 10, "somebody copied");
}

}  // namespace main_job
