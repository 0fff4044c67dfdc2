/** `npm run lint` checks the rules that Biome does not have and lists each fault. */
import { findBullmqFaults } from './lint/bullmq.ts'
import { findUnknownNames } from './lint/names.ts'
import { findPageFaults, findWordingFaults } from './lint/prose.ts'
import { readSources } from './lint/sources.ts'
import { findStyleFaults } from './lint/style.ts'

const sources = readSources()
const code = sources.filter(({ path }) => /^(?!docs|examples).*\.(ts|tsx|js|cjs)$/.test(path))
const faults = [
  ...findStyleFaults(code),
  ...findUnknownNames(sources),
  ...findBullmqFaults(code),
  ...(await findPageFaults(sources)),
  ...findWordingFaults(sources),
]
for (const fault of faults) console.log(fault)
if (faults.length > 0) process.exitCode = 1
console.log(`Faults of style: ${faults.length}, in ${sources.length} files`)
