// quote_name() and printable() live in core.
#pragma once

#include "core/names.h"  // IWYU pragma: export
