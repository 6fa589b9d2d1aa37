// SPDX-License-Identifier: Apache-2.0
// A parameter server. This process keeps the parameters of a model in a region. Four ranks read them there, compute
// gradients on their own data and send them through a queue. Now and then this process calls one of the ranks to
// evaluate the model, by a reference to it. The owner of the model is this process.
//
// Meanwhile ranks are killed at random, and others take their places among the ranks and in the world of remote calls.
// Gradients that a dead rank had sent count. Another rank answers the calls that it did not answer. So the model is
// fitted all the same.
//
//     parameter_server [--steps N] [--kills N] [--seed N]
//
//     g++ -std=c++20 parameter_server.cpp -o parameter_server -pthread $(pkg-config --cflags --libs shmbroker-spawn)
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <shmbroker/pool.hpp>
#include <shmbroker/remote.hpp>
#include <shmbroker/spawn.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
namespace remote = shmbroker::remote;

constexpr int kRanks = 4;
constexpr std::size_t kWeights = 16;
constexpr int kBatch = 32;
using Weights = std::array<double, kWeights>;

// The contents of the region. One process writes. The version is odd while it does: a reader that saw an odd version,
// or two different ones, reads again.
struct Parameters {
  std::atomic<std::uint64_t> version;
  std::array<std::atomic<double>, kWeights> weights;

  void write(const Weights& values) {
    version.fetch_add(1, std::memory_order_acq_rel);
    for (std::size_t i = 0; i < kWeights; ++i) weights[i].store(values[i], std::memory_order_release);
    version.fetch_add(1, std::memory_order_acq_rel);
  }
  Weights read() const {
    for (;;) {
      const std::uint64_t before = version.load(std::memory_order_acquire);
      Weights values;
      for (std::size_t i = 0; i < kWeights; ++i) values[i] = weights[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version.load(std::memory_order_relaxed) == before) return values;
    }
  }
};

struct Gradient {
  int worker = 0;
  Weights values{};
};
template <class T>
std::span<const std::byte> bytes_of(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}
template <class T>
T object_in(const shmbroker::Message& message) {
  T object;
  if (message.bytes().size() != sizeof object) throw std::runtime_error("a message of another size");
  std::memcpy(&object, message.bytes().data(), sizeof object);
  return object;
}

// The world that the model is to learn: a weighted sum, and some noise.
class Data {
 public:
  explicit Data(unsigned seed) : random_(seed) {}
  double next(Weights& inputs) {
    double sum = noise_(random_) * 0.01;
    for (std::size_t i = 0; i < kWeights; ++i) sum += (inputs[i] = noise_(random_)) * truth(i);
    return sum;
  }
  static double truth(std::size_t i) { return static_cast<double>(i) - 7.5; }

 private:
  std::mt19937 random_;
  std::normal_distribution<double> noise_;
};

double error_of(const Weights& weights, const Weights& inputs, double output) {
  double sum = -output;
  for (std::size_t i = 0; i < kWeights; ++i) sum += weights[i] * inputs[i];
  return sum;
}

// ------------------------------------------------------------------ what is called by name

// The server owns it; what others have is a reference.
class Model {
 public:
  explicit Model(const Parameters* parameters) : parameters_(parameters) {}
  std::vector<double> weights() const {
    const Weights now = parameters_->read();
    return {now.begin(), now.end()};
  }

 private:
  const Parameters* parameters_;
};
SHMBROKER_REMOTE_METHOD("Model.weights", &Model::weights);

// On data that no rank learns from.
double evaluate(const remote::Remote<Model>& model) {
  const auto now = model.rpc_sync<std::vector<double>>("Model.weights");
  Weights weights{};
  std::copy_n(now.begin(), std::min(now.size(), weights.size()), weights.begin());
  Data data(0);
  double sum = 0;
  Weights inputs;
  for (int i = 0; i < 1000; ++i) {
    const double output = data.next(inputs), error = error_of(weights, inputs, output);
    sum += error * error;
  }
  return sum / 1000;
}
SHMBROKER_REMOTE_FUNCTION("evaluate", evaluate);

std::string trainer(int worker) { return "trainer-" + std::to_string(worker); }

// All know it by the port; a server that runs beside this one has another.
void join_world(const std::string& name, int rank, int port, unsigned threads) {
  remote::InitOptions options;
  options.address = "localhost:" + std::to_string(port);
  options.threads = threads;
  remote::init(name, rank, 1 + kRanks, options);
}

// ------------------------------------------------------------------ the ranks

shmbroker::Queue open_gradients(const shmbroker::Pool& pool, shmbroker::Role role) {
  return pool.open_queue("gradients", role, {.kind = shmbroker::QueueKind::mpmc, .cells = 8});
}
// Until the server closes the queue of gradients, which may be before a late one has opened it.
void learn(const Parameters* parameters, const shmbroker::Pool& pool, int worker, unsigned seed) try {
  const auto gradients = open_gradients(pool, shmbroker::Role::writer);
  Data data(seed);
  for (;;) {
    const Weights weights = parameters->read();
    Gradient gradient{worker, {}};
    Weights inputs;
    for (int i = 0; i < kBatch; ++i) {
      const double output = data.next(inputs), error = error_of(weights, inputs, output);
      for (std::size_t k = 0; k < kWeights; ++k) gradient.values[k] += 2 * error * inputs[k] / kBatch;
    }
    const auto sent = gradients.try_send(bytes_of(gradient), 60s);
    if (!sent && sent.error().status() != shmbroker::Status::peer_gone) throw sent.error();
  }
} catch (const shmbroker::Error& error) {
  if (error.status() != shmbroker::Status::closed) throw;
}

// A thread evaluates when it is called, also while this one waits for room in the queue.
void work(int, const shmbroker::ReadOnlyRegion& memory, const shmbroker::Pool& pool, int worker, unsigned seed,
          int port) {
  join_world(trainer(worker), 1 + worker, port, 1);
  learn(reinterpret_cast<const Parameters*>(memory.data()), pool, worker, seed);
  remote::shutdown();
}
SHMBROKER_SPAWN_FUNCTION("work", work);

// ------------------------------------------------------------------ the server

class Server {
 public:
  explicit Server(unsigned seed)
      : random_(seed),
        session_(shmbroker::Session::connect({.program = "parameter_server"})),
        pool_(shmbroker::Pool::create(session_, {.classes = {{.slot_size = 512, .slots = 64}}})),
        memory_(session_.create(sizeof(Parameters))),
        for_workers_(session_.attach(memory_.id())),
        parameters_(new(memory_.data()) Parameters{}),
        gradients_(open_gradients(pool_, shmbroker::Role::reader)),
        port_(20000 + ::getpid() % 40000) {
    for (int worker = 0; worker < kRanks; ++worker) start(worker);
    ::setenv("SHMBROKER_SOCKET", session_.info().socket, 1);
    join_world("server", 0, port_, 0);
    model_.emplace(Model(parameters_));
  }

  // One gradient applied to the parameters.
  void step() {
    receive(gradients_);
    const auto gradient = object_in<Gradient>(message_);
    for (std::size_t i = 0; i < kWeights; ++i) weights_[i] -= 0.02 * gradient.values[i];
    parameters_->write(weights_);
    ++steps_of_[static_cast<std::size_t>(gradient.worker)];
  }

  // SIGKILL for one of the ranks, and another in its place.
  void kill_one() {
    const int worker = static_cast<int>(random_() % kRanks);
    auto& crew = crew_[static_cast<std::size_t>(worker)];
    ::kill(crew->pids().at(0), SIGKILL);
    try {
      crew->join();
      throw std::runtime_error("a rank that was killed has ended well");
    } catch (const shmbroker::ProcessExitedException& death) {
      std::printf("worker %d: %s; another takes its place\n", worker, death.what());
    }
    start(worker);
  }

  // One of the ranks works it out; while this process waits it answers what that one asks of the model. If that one
  // has died, it is the turn of the next.
  double evaluate_remotely() {
    for (const auto deadline = std::chrono::steady_clock::now() + 60s;;) {
      const int worker = turn_++ % kRanks;
      if (const auto loss = evaluate_at(worker)) return *loss;
      if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error("nobody evaluates the model");
    }
  }

  // All ranks are there, also the last that came. They get the message to end, and end by themselves.
  void finish() {
    for (int worker = 0; worker < kRanks; ++worker)
      for (const auto deadline = std::chrono::steady_clock::now() + 60s; !evaluate_at(worker);)
        if (std::chrono::steady_clock::now() > deadline) throw std::runtime_error(trainer(worker) + " does not come");
    gradients_.shutdown();
    model_.reset();
    remote::shutdown();
    for (auto& crew : crew_) crew->join();
    for (int worker = 0; worker < kRanks; ++worker)
      std::printf("worker %d sent %d gradients\n", worker, steps_of_[static_cast<std::size_t>(worker)]);
  }

 private:
  void start(int worker) {
    shmbroker::SpawnOptions options;
    options.join = false;
    options.daemon = true;    // the server's end ends them
    options.no_group = true;  // all memory is the server's
    options.socket = session_.info().socket;
    options.environment = {"SHMBROKER_SOCKET=" + options.socket};
    crew_[static_cast<std::size_t>(worker)].emplace(
        shmbroker::spawn("work", options, for_workers_, pool_, worker, static_cast<unsigned>(random_()), port_));
  }

  // Nothing: the rank has died, or no successor has come yet.
  std::optional<double> evaluate_at(int worker) {
    try {
      const auto loss = remote::rpc_sync<double>(trainer(worker), "evaluate", *model_);
      std::printf("worker %d finds a mean squared error of %.6f\n", worker, loss);
      return loss;
    } catch (const shmbroker::Error& error) {
      if (error.status() != shmbroker::Status::worker_gone) throw;
      (void)remote::serve(10ms);  // takes in events about deaths and newcomers, too
      return std::nullopt;
    }
  }

  // A rank that dies is no reason to stop: there are others, and its successor comes.
  void receive(shmbroker::Queue& queue) {
    for (const auto deadline = std::chrono::steady_clock::now() + 60s;;) {
      const auto received = queue.try_receive(message_, 60s);
      if (received) return;
      if (received.error().status() != shmbroker::Status::peer_gone || std::chrono::steady_clock::now() > deadline)
        throw received.error();
    }
  }

  std::mt19937 random_;
  shmbroker::Session session_;
  shmbroker::Pool pool_;
  shmbroker::Region memory_;
  shmbroker::ReadOnlyRegion for_workers_;  // closes writing for everybody but this process
  Parameters* parameters_;
  shmbroker::Queue gradients_;
  int port_;
  std::optional<remote::Remote<Model>> model_;
  shmbroker::Message message_;
  std::array<std::optional<shmbroker::ProcessContext>, kRanks> crew_;
  std::array<int, kRanks> steps_of_{};
  Weights weights_{};
  int turn_ = 0;
};

int run(int steps, int kills, unsigned seed) {
  Server server(seed);
  const double before = server.evaluate_remotely();
  for (int step = 1; step <= steps; ++step) {
    server.step();
    if (kills > 0 && step % (steps / (kills + 1)) == 0 && step / (steps / (kills + 1)) <= kills) server.kill_one();
    if (step % std::max(steps / 4, 1) == 0) (void)server.evaluate_remotely();
  }
  const double after = server.evaluate_remotely();
  server.finish();
  std::printf("%d steps, %d deaths: the error went from %.3f to %.6f\n", steps, kills, before, after);
  return after < before / 100 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (auto rc = shmbroker::spawn_child(argc, argv)) return *rc;
  int steps = 2000, kills = 10;
  unsigned seed = std::random_device()();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--steps") steps = std::atoi(argv[i + 1]);
    else if (option == "--kills") kills = std::atoi(argv[i + 1]);
    else if (option == "--seed") seed = static_cast<unsigned>(std::atol(argv[i + 1]));
    else argc = 0;
  }
  if (argc % 2 == 0 || steps < 500 || kills < 0 || kills > steps / 10) {
    std::fputs(
        "usage: parameter_server [--steps N] [--kills N] [--seed N]: N steps from 500 on, a tenth as many kills\n",
        stderr);
    return 2;
  }
  try {
    return run(steps, kills, seed);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parameter_server: %s\n", error.what());
    return 1;
  }
}
