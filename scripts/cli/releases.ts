/** The versions of a bot's code and their labels: `releases`, `promote`, `rollback`, `compare` and `dry-run`. */
import { type Part, readParts } from './calls.ts'
import type { BotFolder } from './folder.ts'
import { note, printRows } from './print.ts'

const POLL_MS = 500

interface Answer {
  readonly parameter?: readonly Part[]
}

export async function printReleases({ medplum, operation }: BotFolder): Promise<void> {
  const { parameter = [] }: Answer = await medplum.get(operation('$releases'))
  const rows = parameter.map(({ part = [] }) => {
    const { version = '', deployed = '', file = '' } = readParts<Record<string, string>>(part)
    return { version, deployed, labels: labelsIn(part).join(', '), file }
  })
  printRows(rows)
}

/** A share follows its label. */
function labelsIn(part: readonly Part[]): readonly string[] {
  return part.flatMap(({ name, valueString }, index) => {
    if (name !== 'label') return []
    const { name: next, valueInteger } = part[index + 1] ?? {}
    return [next === 'share' ? `${valueString} ${valueInteger} %` : String(valueString)]
  })
}

interface Move {
  readonly label: string
  readonly version: string
  readonly previous: string
  readonly share: number
}

export async function promote(
  { medplum, operation }: BotFolder,
  from: string,
  { to, share }: { readonly to?: string; readonly share?: number },
): Promise<void> {
  printMove(await medplum.post(operation('$promote'), { from, to, share }))
}

export async function rollback(
  { medplum, operation }: BotFolder,
  version: string | undefined,
): Promise<void> {
  printMove(await medplum.post(operation('$rollback'), { version }))
}

function printMove({ parameter = [] }: Answer): void {
  const { label, version, previous, share } = readParts<Move>(parameter)
  const before = previous === undefined || previous === version ? '' : `, before it was ${previous}`
  const calls = share === undefined ? '' : ` and gets ${share} % of the calls`
  note('green', `${label} is ${version}${before}${calls}`)
}

export async function compare(
  { medplum, operation }: BotFolder,
  from: string,
  to: string,
): Promise<void> {
  const query = new URLSearchParams({ from, to })
  const { parameter = [] }: Answer = await medplum.get(operation(`$diff?${query}`))
  const { diff } = readParts<{ diff: string }>(parameter)
  if (diff === undefined) note('dim', 'no difference')
  else process.stdout.write(diff)
}

/** Waits for the report; prints the runs that differ as before (-) and after (+). */
export async function dryRun(
  { medplum, operation }: BotFolder,
  version: string,
  { count, since }: { readonly count?: string; readonly since?: string },
): Promise<void> {
  const asked = { version, since, ...(count === undefined ? {} : { count: Number(count) }) }
  const { output }: { output?: Answer } = await medplum.startAsyncRequest(operation('$dry-run'), {
    method: 'POST',
    body: JSON.stringify(asked),
    headers: { 'Content-Type': 'application/json' },
    pollStatusOnAccepted: true,
    pollStatusPeriod: POLL_MS,
  })
  const parts = output?.parameter ?? []
  for (const { name, part = [] } of parts) if (name === 'run') printRun(part)
  const report = readParts<Record<string, number>>(parts)
  const { runs = 0, same = 0, different = 0, notCompared = 0 } = report
  const color = same === runs ? 'green' : 'yellow'
  note(color, `${runs} runs: ${same} the same, ${different} different, ${notCompared} not compared`)
}

function printRun(part: readonly Part[]): void {
  const values = readParts<Record<string, string>>(part)
  console.log(`run ${values.runId?.replace('urn:uuid:', '')} ${values.reason ?? ''}`.trim())
  for (const [sign, when] of [
    ['-', 'Before'],
    ['+', 'After'],
  ] as const) {
    const status = values[`status${when}`]
    const writes = values[`writes${when}`]
    const written = writes === undefined ? '' : `, writes ${writes}`
    if (status !== undefined) {
      console.log(`${sign} ${status}${written}: ${values[`answer${when}`] ?? ''}`)
    }
  }
  for (const { name, valueString } of part) if (name === 'note') console.log(`  ${valueString}`)
}
