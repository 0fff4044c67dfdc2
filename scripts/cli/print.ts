/** Output for a person at a terminal, and for a program at a pipe: colours, tables and line ends differ. */
import { styleText } from 'node:util'
import type { Answer, Run } from './calls.ts'
import type { SandboxRun } from './sandbox.ts'

type Style = Parameters<typeof styleText>[0]

/** On standard error; without colours where that is no terminal. */
export function note(style: Style, text: string): void {
  const { isTTY } = process.stderr
  console.error(
    styleText(style, isTTY ? escapeControlCharacters(text) : text, { stream: process.stderr }),
  )
}

/** On standard output: JSON over several lines, all else as it came. */
export function printAnswer({ text, isJson }: Answer): void {
  console.log(isJson ? JSON.stringify(JSON.parse(text), undefined, 2) : shown(text))
}

/** The segments of an HL7 message end in CR, with which a terminal would write them over each other. */
function shown(text: string): string {
  return process.stdout.isTTY ? escapeControlCharacters(text.replace(/\r\n?/g, '\n')) : text
}

/**
 * Replaces control characters but line feeds and tabs: logs and answers hold what strangers have sent, and escape
 * sequences would have the terminal rename its window, hide lines or fill its clipboard.
 */
export function escapeControlCharacters(text: string): string {
  return text.replace(/\p{Cc}/gu, (character) => (/[\n\t]/.test(character) ? character : '\ufffd'))
}

/** A table in a terminal, else lines of fields between tabs. */
export function printRuns(runs: readonly Run[]): void {
  const rows = runs.map(({ runId, status, started, durationMs, error = '' }) => ({
    run: runId,
    status,
    started,
    ms: durationMs,
    error: error.split('\n')[0] ?? '',
  }))
  if (process.stdout.isTTY) console.table(rows)
  else for (const row of rows) console.log(Object.values(row).join('\t'))
}

/** One event of the live log. */
export function printEvent(type: string, data: Record<string, string>): void {
  const short = data.runId?.slice(0, 8)
  if (type === 'log') process.stdout.write(`${shown(data.text?.trimEnd() ?? '')}\n`)
  if (type === 'start') note('dim', `run ${short} began`)
  if (type === 'end') {
    note(
      data.status === 'ok' ? 'green' : 'red',
      `run ${short} ${data.status} in ${data.durationMs} ms`,
    )
  }
  if (type === 'gap') note('yellow', `${data.messages} messages were left out`)
}

/** A run in the sandbox of this machine; false for one that failed. */
export function printSandboxRun({ result, requests, requestMs, startMs }: SandboxRun): boolean {
  const { status, failure, kind, body, log } = result
  const isOk = status === 'ok'
  if (log !== '') note('dim', log.trimEnd())
  if (isOk && kind !== 'undefined')
    printAnswer({ text: body, isJson: kind === 'json' || kind === 'outcome' })
  if (!isOk) note('red', outcomeMessage(body))
  const facts = [
    `${isOk ? 'ok' : failure} in ${result.wallMs.toFixed(1)} ms`,
    `CPU ${result.cpuMs.toFixed(1)} ms`,
    ...(result.memoryMb === undefined ? [] : [`heap ${result.memoryMb.toFixed(1)} MB`]),
    `${requests} ${requests === 1 ? 'request' : 'requests'} in ${requestMs.toFixed(1)} ms`,
    `sandbox ready after ${startMs.toFixed(0)} ms`,
  ]
  note(isOk ? 'green' : 'red', facts.join(', '))
  return isOk
}

/** The text of the outcome's first issue, else all of it. */
function outcomeMessage(body: string): string {
  const { issue } = JSON.parse(body) as { issue?: { details?: { text?: string } }[] } // of the sandbox
  return issue?.[0]?.details?.text ?? body
}
