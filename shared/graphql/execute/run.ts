/** One operation: limits, cached reads, and levels. Reads of one level share one statement per kind. */

import { GraphQLError, type GraphQLSchema, Source } from 'graphql'
import pLimit from 'p-limit'
import { servicePrincipal } from '../../access/principal.ts'
import { getOrInsert } from '../../core/cache.ts'
import { HttpError, issue, type OperationOutcome, outcome, tooCostly } from '../../core/errors.ts'
import { type Logger, unredactedLogger } from '../../core/log.ts'
import { TimeSlicer } from '../../core/yielding.ts'
import type { Resource } from '../../fhir/resource.ts'
import { auditRefusal, restEvent } from '../../request/admin-audit.ts'
import { charge } from '../../request/quota.ts'
import type { FhirContext } from '../../request/request.ts'
import type { SearchRequest } from '../../search/language/search-request.ts'
import type { Version } from '../../store/rows/version.ts'
import type { DeferredText } from './deferred-text.ts'
import { type Args, coerceArguments, type Plan, type Step, type VariableValues } from './plan.ts'

const MOST = {
  searches: 5_000,
  resources: 20_000,
  evaluations: 10_000,
  /** List elements inside resources, counted for each field that reads them. */
  values: 500_000,
  /** Characters of the resources read. */
  characters: 67_108_864,
} as const
const NAMES: Readonly<Record<keyof typeof MOST, string>> = {
  searches: 'searches',
  resources: 'resources',
  evaluations: 'evaluations',
  values: 'elements of lists',
  characters: 'characters of resources',
}

const AT_ONCE = 4

export interface Path {
  readonly parent: Path | undefined
  readonly key: string | number
}

export function pathKeys(path: Path | undefined): (string | number)[] {
  const keys: (string | number)[] = []
  for (let at = path; at !== undefined; at = at.parent) keys.unshift(at.key)
  return keys
}

/** Work that fields wait for: items with the same key and level share one call of `run`. */
export interface Pending<Item, Answer> {
  readonly key: string
  readonly item: Item
  /** Results in item order; each is computed on demand and may throw. */
  run(items: readonly Item[]): Promise<readonly (() => Answer)[]>
}

export interface ReferenceTarget {
  readonly type: string
  readonly id: string
  readonly name: string
}

interface Place {
  readonly out: DeferredText
  readonly step: Step
  readonly path: Path
}

interface Group {
  readonly items: unknown[]
  readonly places: (Place & { write(out: DeferredText, answer: unknown): void })[]
  readonly run: Pending<unknown, unknown>['run']
}

interface RunConfig {
  readonly interaction: FhirContext
  readonly schema: GraphQLSchema
  readonly variables: VariableValues
  /** Preserves decimals exactly. */
  readonly keepsDecimals: boolean
  readonly asksWhole: boolean
  /** The original document, and the mapping from compiled positions. */
  readonly text: string
  locate(position: number): number
}

export class Run {
  readonly config: RunConfig
  readonly account: Account
  readonly turns = new TimeSlicer()
  readonly errors: GraphQLError[] = []
  readonly used = { searches: 0, resources: 0, evaluations: 0, values: 0, characters: 0 }
  /** Resources by `Type/id`; undefined: missing or not visible. Cleared by writes. */
  readonly known = new Map<string, Version | undefined>()
  /** Pending and completed reads by `Type/id`. */
  readonly asked = new Map<string, Pending<ReferenceTarget, Version | undefined>>()
  /** Shared by searches with equal arguments. */
  readonly requests = new Map<string, Promise<SearchRequest>>()
  /** Slice names of a list by the path of its field. */
  readonly slices = new Map<string, readonly string[]>()
  /** Cached texts by plan: frequently referenced resources, and introspection. */
  readonly texts = new Map<Plan, Map<unknown, string>>()
  readonly #args = new Map<Step, Args>()
  #groups = new Map<string, Group>()
  #jobs: { readonly out: DeferredText; work(): void | Promise<void> }[] = []
  #end: unknown

  constructor(config: RunConfig) {
    this.config = config
    this.account = openAccount(config.interaction)
  }

  argumentsFor(step: Step): Args {
    const known = step.args?.() ?? this.#args.get(step)
    if (known !== undefined) return known
    const [node] = step.nodes
    if (step.field === undefined || node === undefined) throw new Error('A field has no node')
    const made = coerceArguments(step.field, node, this.config.variables)
    this.#args.set(step, made)
    return made
  }

  limitFor(what: keyof typeof MOST): number {
    const { graphql } = this.config.interaction.principal.project
    return (what === 'searches' ? graphql?.searches : undefined) ?? MOST[what]
  }

  /** Errors: 400 `too-costly`. */
  spend(what: keyof typeof MOST, amount: number): void {
    const most = this.limitFor(what)
    this.used[what] += amount
    if (this.used[what] <= most) return
    throw what === 'searches' ? tooManySearches() : tooCostly(`More than ${most} ${NAMES[what]}`)
  }

  /** Writes an object and caches its text, unless it has placeholders or errors, which belong to their position. */
  once(
    out: DeferredText,
    { plan, of }: { readonly plan: Plan; readonly of: unknown },
    write: (part: DeferredText) => void,
  ): void {
    const texts = getOrInsert(this.texts, plan, () => new Map<unknown, string>())
    const known = texts.get(of)
    if (known !== undefined) {
      out.text += known
      return
    }
    const part = out.fragment()
    const { length } = this.errors
    write(part)
    if (part.size === 0 && this.errors.length === length) texts.set(of, part.text)
    out.append(part)
  }

  /** Writes the field once its statement completes. */
  enqueueRead<Item, Answer>(
    { key, item, run }: Pending<Item, Answer>,
    place: Place,
    write: (out: DeferredText, answer: Answer) => void,
  ): void {
    const group = this.#groups.get(key) ?? { items: [], places: [], run: run as Group['run'] }
    group.items.push(item)
    group.places.push({ ...place, write: write as (out: DeferredText, answer: unknown) => void })
    this.#groups.set(key, group)
  }

  enqueueWork(out: DeferredText, work: () => void | Promise<void>): void {
    this.#jobs.push({ out, work })
  }

  /** Ends the whole request with this error, not only one field. */
  abortRequest(error: unknown): unknown {
    this.#end = error
    return error
  }

  isFatal(error: unknown): boolean {
    return error === this.#end && error !== undefined
  }

  /** Sets the field to null, or its nearest nullable parent. */
  fail(error: unknown, { out, step, path }: Place): void {
    if (this.isFatal(error)) throw error
    this.report(error, step, path)
    out.reset('null', 0)
  }

  report(error: unknown, { nodes }: Pick<Step, 'nodes'>, path: Path | undefined): void {
    const { text, locate, interaction: context } = this.config
    const { services, principal, request } = context
    const positions = nodes.map(({ loc }) => locate(loc?.start ?? 0))
    const place = { source: new Source(text), positions, path: path && pathKeys(path) }
    this.errors.push(fieldError(error, place, services.log))
    auditRefusal(services, principal, request, error)
  }

  /** Errors: those that end the request. */
  check(): void {
    this.config.interaction.request.signal?.throwIfAborted()
  }

  async settle(): Promise<void> {
    for (;;) {
      await this.#work()
      if (this.#groups.size === 0) return
      const level = [...this.#groups.values()]
      this.#groups = new Map()
      await pLimit(AT_ONCE).map(level, (group) => this.#answer(group))
    }
  }

  /** A timeout while a list is being written ends the request, since half a list is not a valid answer. */
  async #work(): Promise<void> {
    try {
      // Jobs may add jobs.
      for (const { out, work } of this.#jobs) {
        if (this.turns.isUsedUp) {
          await this.turns.rest()
          this.check()
        }
        await work()
        out.close()
      }
    } catch (error) {
      throw this.abortRequest(error)
    }
    this.#jobs = []
  }

  async #answer({ items, places, run }: Group): Promise<void> {
    let answers: readonly (() => unknown)[]
    try {
      this.check()
      answers = await run(items)
      this.turns.begin()
    } catch (error) {
      for (const place of places) this.fail(error, place)
      return
    }
    for (const [i, place] of places.entries()) {
      try {
        this.check()
        place.write(place.out, answers[i]?.())
        place.out.close()
      } catch (error) {
        this.fail(error, place)
      }
      if (this.turns.isUsedUp) await this.turns.rest()
    }
  }
}

export function tooManySearches(): HttpError {
  return tooCostly('Maximum number of searches exceeded')
}

interface ReadGroup {
  readonly interaction: 'read' | 'search-type'
  readonly types: readonly string[]
  /** Query string of a search; may contain patient data. */
  readonly query?: string
  readonly parents?: number
  readonly count: number
}

interface Account {
  /** Errors: 429. */
  charge(units: number): Promise<void>
  add(group: ReadGroup): void
  /** `RateLimit` header; undefined without a quota. */
  readonly rateLimit: string | undefined
  /** Writes the audit log in the background; never delays or fails a response. */
  close(): void
}

function openAccount({ services, principal, request }: FhirContext): Account {
  const groups: ReadGroup[] = []
  const { log, repository, config } = services
  const { project } = principal
  let rateLimit: string | undefined
  return {
    async charge(units) {
      rateLimit = (await charge(services, principal, { request, units })) ?? rateLimit
    },
    add(group) {
      groups.push(group)
    },
    get rateLimit() {
      return rateLimit
    },
    close() {
      const logged = groups.splice(0)
      if (config.graphqlAudit === 'log') {
        for (const { query: _query, ...group } of logged) {
          unredactedLogger(log).info({ auditEvent: readAuditEvent(group) }, 'GraphQL read')
        }
        return
      }
      const { profile, profileDisplay } = principal
      const writer = servicePrincipal(project, { profile, profileDisplay })
      const written = Promise.all(
        logged.map((group) => repository.create(writer, readAuditEvent(group))),
      )
      written.catch((cause: unknown) => log.error({ cause }, 'AuditEvents were lost'))
    },
  }

  function readAuditEvent({ interaction, types, query, parents, count }: ReadGroup): Resource {
    const numbers = Object.entries({ count, parents }).filter(([, number]) => number !== undefined)
    const entity = {
      description: types.join(', '),
      ...(query === undefined ? {} : { query: Buffer.from(query).toString('base64') }),
      detail: numbers.map(([type, number]) => ({ type, valueString: String(number) })),
    }
    return restEvent(principal, project, interaction, entity)
  }
}

interface ErrorPlace {
  readonly source: Source
  readonly positions: readonly number[]
  /** Undefined for an error of several fields. */
  readonly path: readonly (string | number)[] | undefined
}

/** Includes the outcome of a store error; internal causes go to the log only. */
function fieldError(error: unknown, place: ErrorPlace, log: Logger): GraphQLError {
  if (error instanceof GraphQLError) return new GraphQLError(error.message, place)
  const failure = error instanceof HttpError ? error : undefined
  if (failure === undefined) log.error({ err: error }, 'A GraphQL field failed')
  const body = failure?.outcome ?? outcome(undefined, issue('error', 'exception', INTERNAL))
  return new GraphQLError(failure?.message ?? INTERNAL, {
    ...place,
    extensions: { code: body.issue[0]?.code, status: failure?.status ?? 500, outcome: body },
  })
}

const INTERNAL = 'Internal server error'

/** One issue per error. */
export function errorsOutcome(messages: readonly string[]): OperationOutcome {
  return outcome(undefined, ...messages.map((text) => issue('error', 'invalid', text)))
}
