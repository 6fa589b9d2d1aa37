// SPDX-License-Identifier: Apache-2.0
// The launcher of a training program over several hosts. Every host calls launch() with its own shard, and all ranks
// learn where the first one is. A failure of a rank ends the ranks of its host and is thrown. Run it once on each host:
//
//     launch RANKS_PER_HOST SHARD HOSTS tcp://FIRST_HOST:PORT
//
//     g++ -std=c++20 launch.cpp -o launch $(pkg-config --cflags --libs shmbroker-spawn)
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <shmbroker/spawn.hpp>
#include <string>

namespace {

// Every rank runs this: it says where it is and adds its number to a sum with the others of its host.
int train(int rank, const std::string& backend, const std::string& what) {
  shmbroker::ranks::add("sum of ranks", rank);
  shmbroker::ranks::barrier();
  std::printf("rank %d of %s trains %s over %s, rank 0 is at %s:%s\n", rank, std::getenv("WORLD_SIZE"), what.c_str(),
              backend.c_str(), std::getenv("MASTER_ADDR"), std::getenv("MASTER_PORT"));
  return static_cast<int>(shmbroker::ranks::add("sum of ranks", 0));
}
SHMBROKER_SPAWN_FUNCTION("train", train);

// The backend is what the function meets the other ranks by: its own first argument.
template <class... A>
shmbroker::ProcessContext launch(int num_proc, const std::string& function, const std::string& init_method,
                                 int shard_id, int num_shards, const std::string& backend, const A&... arguments) {
  shmbroker::SpawnOptions options;
  options.nprocs = num_proc;
  options.shard = shard_id;
  options.shards = num_shards;
  options.no_group = true;  // this one needs no shared memory
  const std::string prefix = "tcp://";
  const std::size_t colon = init_method.rfind(':');
  if (!init_method.starts_with(prefix) || colon < prefix.size() || colon == std::string::npos)
    throw std::invalid_argument("init_method is '" + init_method + "': it must be tcp://HOST:PORT");
  options.master_addr = init_method.substr(prefix.size(), colon - prefix.size());
  const char* const end = init_method.data() + init_method.size();
  const auto port = std::from_chars(init_method.data() + colon + 1, end, options.master_port);
  if (port.ec != std::errc() || port.ptr != end || options.master_port == 0)
    throw std::invalid_argument("init_method is '" + init_method + "': its port must be a number from 1 to 65535");
  return shmbroker::spawn(function, options, backend, arguments...);
}

}  // namespace

int main(int argc, char** argv) {
  if (auto rc = shmbroker::spawn_child(argc, argv)) return *rc;
  if (argc != 5) {
    std::fputs("usage: launch RANKS_PER_HOST SHARD HOSTS tcp://FIRST_HOST:PORT\n", stderr);
    return 2;
  }
  try {
    const auto done = launch(std::atoi(argv[1]), "train", argv[4], std::atoi(argv[2]), std::atoi(argv[3]), "sockets",
                             std::string("a model"));
    std::printf("shard %s is done, its ranks add up to %d\n", argv[2], done.result<int>(0));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launch: %s\n", error.what());
    return 1;
  }
}
