// SPDX-License-Identifier: Apache-2.0
// A worker of C++ in the world of tests/python/test_torch_rpc.py: torch_rpc_worker NAME RANK WORLD_SIZE
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "spawn/face/remote.hpp"

namespace remote = shmbroker::remote;

namespace {

int add(int a, int b) { return a + b; }
SHMBROKER_REMOTE_FUNCTION("add", add);

std::map<std::string, std::vector<double>> turn(const std::map<std::string, std::vector<double>>& given) {
  auto out = given;
  for (auto& [key, values] : out)
    for (double& value : values) value = -value;
  return out;
}
SHMBROKER_REMOTE_FUNCTION("turn", turn);

remote::Bytes grow(const remote::Bytes& bytes) {
  remote::Bytes out(bytes.size() + 1);
  for (std::size_t i = 0; i < bytes.size(); ++i) out.data()[i] = bytes.data()[i];
  out.data()[bytes.size()] = std::byte{7};
  return out;
}
SHMBROKER_REMOTE_FUNCTION("grow", grow);

void refuse(const std::string& text) { throw std::invalid_argument(text); }
SHMBROKER_REMOTE_FUNCTION("refuse", refuse);

// The functions that it calls at a worker of Python.
std::vector<std::string> call_python(const std::string& worker) {
  std::vector<std::string> told;
  const auto doubled = remote::rpc_sync<std::vector<std::string>>(worker, "double", std::string("x"));
  told.push_back(doubled.at(0) + doubled.at(1));
  remote::Bytes many(200'000);
  for (std::byte& one : many.bytes()) one = std::byte{2};
  told.push_back(std::to_string(remote::rpc_sync<long>(worker, "sum_bytes", many)));
  told.push_back(std::to_string(remote::rpc_sync<remote::Bytes>(worker, "fill", 100'000, 5).size()));
  try {
    remote::rpc_sync<int>(worker, "fail", std::string("as asked"));
  } catch (const remote::RemoteFailure& failure) {
    told.push_back(failure.type() + ": " + failure.text());
  }
  try {
    remote::rpc_sync<int>(worker, "unheard");
  } catch (const remote::NoFunction& error) {
    told.push_back("no function");
  }
  told.push_back(remote::remote<std::vector<int>>(worker, "double", 4).to_here().size() == 2 ? "reference" : "");
  return told;
}
SHMBROKER_REMOTE_FUNCTION("call_python", call_python);

struct Counter {
  explicit Counter(int start) : value(start) {}
  int add(int by) { return value += by; }
  int value;
};
SHMBROKER_REMOTE_CLASS("Counter", Counter, int);
SHMBROKER_REMOTE_METHOD("Counter.add", &Counter::add);

}  // namespace

int main(int, char** argv) {
  try {
    remote::InitOptions options;
    options.threads = 2;
    remote::init(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), options);
    remote::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
