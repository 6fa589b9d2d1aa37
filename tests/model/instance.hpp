// SPDX-License-Identifier: Apache-2.0
// One run of a model: its sizes, and whether it must hold or, as a broken variant, must be found to fail.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/model/explorer.hpp"

namespace shmb::model {

struct Instance {
  std::string variant;  // "" holds; else the name of what is broken, as in docs/pool-model.md
  std::string name;
  bool large = false;     // only with --all
  bool liveness = false;  // and from every state rest is reachable
  std::function<Report(const Limits&)> run;
};

template <class Model>
Instance instance(std::string variant, std::string name, Model model, bool liveness = false, bool large = false) {
  const bool look = liveness || !variant.empty();  // some variants fail by never coming to rest
  return {std::move(variant), std::move(name), large, look,
          [model](const Limits& limits) { return explore(model, limits); }};
}

// Each in its own file.
void add_spsc_lanes(std::vector<Instance>& all);
void add_mpmc_lanes(std::vector<Instance>& all);
void add_broadcasts(std::vector<Instance>& all);
void add_wakes(std::vector<Instance>& all);

}  // namespace shmb::model
