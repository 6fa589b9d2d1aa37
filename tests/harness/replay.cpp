// SPDX-License-Identifier: Apache-2.0
// The short form of a libFuzzer target, without libFuzzer and so with any compiler. The target gets each input of a
// corpus, and then as many inputs that are made from these: parts of two, bytes changed, bytes left out. The seed is
// fixed, so every run is the same. Usage: PROGRAM CORPUS COUNT [OPTION OF THE TARGET...]
//
// A corpus is a text: one input a line, in hexadecimal digits. tests/harness/corpus.py makes it from libFuzzer's
// folder.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerInitialize(int* count, char*** words);

namespace {

using Input = std::vector<std::uint8_t>;

std::vector<Input> read(const char* path) {
  std::vector<Input> inputs;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Input one;
    for (std::size_t at = 0; at + 1 < line.size(); at += 2)
      one.push_back(static_cast<std::uint8_t>(std::stoul(line.substr(at, 2), nullptr, 16)));
    inputs.push_back(std::move(one));
  }
  return inputs;
}

class Maker {
 public:
  explicit Maker(const std::vector<Input>& inputs) : inputs_(inputs) {}

  Input next() {
    const Input &head = inputs_[below(inputs_.size())], &tail = inputs_[below(inputs_.size())];
    const auto middle = [&](const Input& input) {
      return input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1));
    };
    Input made(head.begin(), middle(head));
    made.insert(made.end(), middle(tail), tail.end());
    for (std::size_t left = below(4); left > 0 && !made.empty(); --left) {
      const std::size_t at = below(made.size());
      if (below(8) == 0) made.erase(made.begin() + static_cast<std::ptrdiff_t>(at));
      else made[at] = static_cast<std::uint8_t>(below(256));
    }
    return made;
  }

 private:
  std::size_t below(std::size_t end) { return chance_() % end; }
  const std::vector<Input>& inputs_;
  std::mt19937_64 chance_{20261128};
};

}  // namespace

int main(int count, char** words) {
  const long wanted = count > 2 ? std::atol(words[2]) : 0;
  const std::vector<Input> inputs = count > 2 ? read(words[1]) : std::vector<Input>{};
  if (wanted <= 0 || inputs.empty()) {
    std::fprintf(stderr, "usage: %s CORPUS COUNT [OPTION...]; the corpus has an input in each line\n", words[0]);
    return 2;
  }
  (void)LLVMFuzzerInitialize(&count, &words);
  for (const Input& one : inputs) (void)LLVMFuzzerTestOneInput(one.data(), one.size());
  Maker maker(inputs);
  for (long i = 0; i < wanted; ++i) {
    const Input one = maker.next();
    (void)LLVMFuzzerTestOneInput(one.data(), one.size());
  }
  std::printf("%zu inputs of the corpus and %ld made from them: nothing found\n", inputs.size(), wanted);
  return 0;
}
