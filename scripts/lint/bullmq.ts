/** The code uses only the public API of BullMQ, not its keys or scripts. */
import type { Source } from './sources.ts'

/** https://docs.bullmq.io: queues, workers, jobs, and the errors of a processor that moved its job. */
const PUBLIC = new Set([
  'Queue',
  'Worker',
  'Job',
  'DelayedError',
  'WaitingError',
  'UnrecoverableError',
])

/** Parts of internal keys, after a queue or job name; script names; and access to either. */
const INTERNAL = [
  /(\}|bots-a?sync|requests|export|import):(wait|active|prioritized|delayed|paused|meta|pc|marker|stalled|stalled-check|events|lock)\b/,
  /\b(moveToActive|moveToFinished|moveStalledJobsToWait|addStandardJob|addPrioritizedJob)\b/,
  /\.(toKey|runCommand|defineCommand)\(/,
  /\b(queue|worker|job|line)\.(backend|scripts|client)\b/,
  /extends (Worker|Queue|Job)\b/,
]

/** Returns a line for each fault: its place and the rule. */
export function findBullmqFaults(sources: readonly Source[]): readonly string[] {
  return sources.flatMap(({ path, text }) => [
    ...findImports(text).map((name) => `${path}: ${name} is not a documented name of BullMQ`),
    ...text
      .split('\n')
      .filter((line) => INTERNAL.some((pattern) => pattern.test(line)))
      .map((line) => `${path}: ${line.trim()}: uses internals of BullMQ`),
  ])
}

/** Returns imports other than those of public names by a static import. */
function findImports(text: string): readonly string[] {
  const imports = text.matchAll(/import (?:type )?\{([^}]*)\} from 'bullmq'/g)
  const names = Array.from(imports, ([, list = '']) => list.split(',')).flat()
  const others = text.matchAll(/(?:import|require)\(['"]bullmq|from 'bullmq\/[^']*/g)
  return [
    ...names.map((name) => name.replace(/\btype\b/, '').trim()).filter((name) => name !== ''),
    ...Array.from(others, ([match]) => match),
  ].filter((name) => !PUBLIC.has(name))
}
