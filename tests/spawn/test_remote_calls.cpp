#include "tests/spawn/remote_functions.hpp"
