/** Output for terminals and pipes, which differ in colours, tables and line ends. */
import { styleText } from 'node:util'
import type { Answer, Run } from './calls.ts'
import type { SandboxRun } from './sandbox.ts'

type Style = Parameters<typeof styleText>[0]

/** Writes to standard error, with colours only in a terminal. */
export function note(style: Style, text: string): void {
  const { isTTY } = process.stderr
  console.error(
    styleText(style, isTTY ? escapeControlCharacters(text) : text, { stream: process.stderr }),
  )
}

/** Writes to standard output; indents JSON. */
export function printAnswer({ text, isJson }: Answer): void {
  console.log(isJson ? JSON.stringify(JSON.parse(text), undefined, 2) : shown(text))
}

/** Converts CR, the segment end of HL7 messages, for terminals. */
function shown(text: string): string {
  return process.stdout.isTTY ? escapeControlCharacters(text.replace(/\r\n?/g, '\n')) : text
}

/**
 * Replaces control characters except line feeds and tabs: logs and responses contain untrusted data, and escape
 * sequences could manipulate the terminal.
 */
export function escapeControlCharacters(text: string): string {
  return text.replace(/\p{Cc}/gu, (character) => (/[\n\t]/.test(character) ? character : '\ufffd'))
}

/** Prints a table in a terminal, otherwise tab-separated lines. */
export function printRows(rows: readonly Readonly<Record<string, string | number>>[]): void {
  if (process.stdout.isTTY) console.table(rows)
  else for (const row of rows) console.log(Object.values(row).join('\t'))
}

export function printRuns(runs: readonly Run[]): void {
  printRows(
    runs.map(({ runId, status, started, durationMs, error = '' }) => ({
      run: runId,
      status,
      started,
      ms: durationMs,
      error: error.split('\n')[0] ?? '',
    })),
  )
}

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

/** Returns the text of the outcome's first issue, otherwise the body. */
function outcomeMessage(body: string): string {
  const { issue } = JSON.parse(body) as { issue?: { details?: { text?: string } }[] }
  return issue?.[0]?.details?.text ?? body
}
