/**
 * The answers of two runs on one input, compared. Values that differ between any two runs count as equal: the
 * run's id, ids of created resources, version numbers, and times within the run.
 */
import { attempt } from '../core/errors.ts'
import { isObject } from '../fhir/resource.ts'
import type { CallRecord, RunAnswer } from './run-records.ts'

export interface AnsweredRun {
  readonly runId: string
  readonly startedAt: number
  readonly endedAt: number
  readonly answer: RunAnswer
  readonly calls: readonly CallRecord[]
}

/** The reply of a dry run, as the JSON of its body. */
export interface DryRunReply {
  /** Undefined for a run that was stopped: others waited for rows that it had locked, or its worker stopped. */
  readonly run: AnsweredRun | undefined
  /** Calls that were not made, or that had no recorded answer. */
  readonly notes: readonly string[]
}

/** Clocks of PostgreSQL and the worker. */
const CLOCKS_MS = 2000
const CREATED = /^([A-Za-z]+)\/([A-Za-z0-9\-.]{1,64})\/_history\/1$/
const ISO_TIME = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)/g
/** A time of HL7v2 without an offset is in UTC, the time zone of bots. */
const HL7_TIME = /\b(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(?:\.\d{1,4})?(?:[+-]\d{4})?\b/g
const EPOCH_MS = /\b\d{13}\b/g

export function haveSameAnswer(a: AnsweredRun, b: AnsweredRun): boolean {
  return a.answer.status === b.answer.status && comparable(a) === comparable(b)
}

export function haveSameWrites(a: AnsweredRun, b: AnsweredRun): boolean {
  return JSON.stringify(listWrites(a)) === JSON.stringify(listWrites(b))
}

/** Returns the writes in order: the method, with the type of a new resource, or the type and id of another one. */
export function listWrites({ calls }: AnsweredRun): readonly string[] {
  return calls.flatMap(({ method, wrote = [] }) =>
    wrote.map((reference) => {
      const [, created] = CREATED.exec(reference) ?? []
      return `${method} ${created ?? reference.replace(/\/_history\/.*/, '')}`
    }),
  )
}

function comparable(run: AnsweredRun): string {
  const { kind, body } = run.answer
  const isJson = kind === 'json' || kind === 'outcome'
  // Redaction may have left text that is not JSON. Members are in the order that the bot gave them.
  const value = isJson ? attempt<unknown>(() => JSON.parse(body)) : undefined
  const text = value === undefined ? body : JSON.stringify(withoutVersions(value))
  return `${kind} ${withoutTimes(withoutIds(text, run), run)}`
}

function withoutIds(text: string, { runId, calls }: AnsweredRun): string {
  const ids = calls.flatMap(({ wrote = [] }) =>
    wrote.flatMap((reference) => CREATED.exec(reference)?.[2] ?? []),
  )
  return [...new Set(ids)].reduce(
    (rest, id, place) => rest.replaceAll(id, `created-${place + 1}`),
    text.replaceAll(runId, 'run'),
  )
}

function withoutTimes(text: string, { startedAt, endedAt }: AnsweredRun): string {
  const neutral = (found: string, time: number) =>
    time >= startedAt - CLOCKS_MS && time <= endedAt + CLOCKS_MS ? 'now' : found
  return text
    .replace(ISO_TIME, (found) => neutral(found, Date.parse(found)))
    .replace(HL7_TIME, (found, ...[y, mo, d, h, mi, s]) =>
      neutral(
        found,
        Date.UTC(Number(y), Number(mo) - 1, Number(d), Number(h), Number(mi), Number(s)),
      ),
    )
    .replace(EPOCH_MS, (found) => neutral(found, Number(found)))
}

function withoutVersions(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutVersions)
  if (!isObject(value)) return value
  const { meta, ...rest } = value
  const members = Object.entries(rest).map(([name, member]) => [name, withoutVersions(member)])
  if (!isObject(meta)) return Object.fromEntries(members)
  const { versionId: _, ...kept } = meta
  return { ...Object.fromEntries(members), meta: withoutVersions(kept) }
}
