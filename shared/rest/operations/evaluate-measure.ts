/**
 * `Measure/{id}/$evaluate-measure`: how many resources a measure counts, and the proportion of them that it asks for.
 * https://hl7.org/fhir/R4/measure-operation-evaluate-measure.html
 * Criteria are searches (`application/x-fhir-query`) of one type a group, which count what the caller may read; other
 * languages are refused. Stratifiers and supplemental data are left out. By POST the report is stored, as the peer does.
 */
import { badRequest, notSupported, tooCostly } from '../../errors.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import { isObject, parseReference, type Resource } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values.ts'
import type { Criterion, SearchRequest } from '../../query/search-request.ts'
import { readQuery } from '../../request/negotiate.ts'
import { interactionOf, readInputs } from '../../request/parameters.ts'
import { jsonReply } from '../../request/reply.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import { createFrom } from '../resources.ts'
import { parsed, resolved } from '../search/criteria.ts'

const QUERY = 'application/x-fhir-query'
/** Each is a search with an accurate total. */
const MOST_POPULATIONS = 30

/** Errors: 400 for a measure that cannot be evaluated, 403, 404. */
export const evaluateMeasure: Operation = {
  name: 'evaluate-measure',
  on: [{ type: 'Measure', level: 'instance' }],
  standard: 'type',
  methods: ['GET', 'POST'],
  async run(call) {
    const { services, principal, id = '' } = call
    const inputs = readInputs(call, [
      { name: 'periodStart', kind: 'text' },
      { name: 'periodEnd', kind: 'text' },
      { name: 'subject', kind: 'reference' },
      { name: 'reportType', kind: 'text' },
    ])
    const period = { start: inputs.required('periodStart'), end: inputs.required('periodEnd') }
    for (const [name, text] of Object.entries(period)) {
      if (parseDate(text) === undefined) throw badRequest(`The ${name} of the period is no date`)
    }
    const subject = inputs.text('subject')
    if (subject !== undefined) await requirePatient(call, subject)
    const measure = parseVersion(await services.repository.read(principal, 'Measure', id))
    const groups = listOf(measure.group)
    if (groups.flatMap(({ population }) => listOf(population)).length > MOST_POPULATIONS) {
      throw tooCostly(`A measure may have ${MOST_POPULATIONS} populations`)
    }
    const variables = { periodStart: period.start, periodEnd: period.end, subject: subject ?? '' }
    const counted = []
    for (const group of groups) {
      counted.push(
        await groupOf(call, group, { variables, subject, isScored: isProportion(measure) }),
      )
    }
    const report: Resource = {
      resourceType: 'MeasureReport',
      status: 'complete',
      type: subject === undefined ? 'summary' : 'individual',
      measure: typeof measure.url === 'string' ? measure.url : `Measure/${id}`,
      ...(subject === undefined ? {} : { subject: { reference: subject } }),
      date: new Date().toISOString(),
      period,
      ...(counted.length === 0 ? {} : { group: counted }),
    }
    if (call.request.method === 'GET') return jsonReply(200, report)
    const made = await createFrom(interactionOf(call), 'MeasureReport', report, undefined)
    return { ...made, status: 200 }
  },
}

async function requirePatient({ services, principal }: OperationCall, subject: string) {
  const target = parseReference(subject)
  if (target?.type !== 'Patient') throw badRequest('"subject" must be Patient/id', 'subject')
  await services.repository.read(principal, 'Patient', target.id)
}

function isProportion({ scoring }: Resource): boolean {
  const codes = isObject(scoring) ? listOf(scoring.coding) : []
  return codes.some(({ code }) => code === 'proportion')
}

interface Question {
  readonly variables: Readonly<Record<string, string>>
  readonly subject: string | undefined
  readonly isScored: boolean
}

interface Population {
  readonly code: string
  readonly source: Readonly<Record<string, unknown>>
  readonly request: SearchRequest
}

async function groupOf(
  call: OperationCall,
  group: Readonly<Record<string, unknown>>,
  question: Question,
): Promise<object> {
  const populations = await Promise.all(
    listOf(group.population).map((one) => populationOf(call, one, question)),
  )
  const [first] = populations
  const isOfOneType = populations.every(({ request }) => request.type === first?.request.type)
  if (question.isScored && !isOfOneType) {
    throw notSupported('The criteria of a proportion must be searches of one type')
  }
  const counts = new Map<string, number>()
  const shown = []
  for (const { code, source, request } of populations) {
    const conditions = question.isScored ? inside(code, populations) : request.conditions
    const asked = { ...request, conditions, count: 0, total: 'accurate' } as const
    const { total = 0 } = await call.services.repository.search(call.principal, asked)
    counts.set(code, total)
    shown.push({ ...(source.code === undefined ? {} : { code: source.code }), count: total })
  }
  const score = question.isScored ? scoreOf(counts) : undefined
  return {
    ...(group.code === undefined ? {} : { code: group.code }),
    ...(shown.length === 0 ? {} : { population: shown }),
    ...(score === undefined ? {} : { measureScore: { value: score } }),
  }
}

async function populationOf(
  call: OperationCall,
  source: Readonly<Record<string, unknown>>,
  { variables, subject }: Question,
): Promise<Population> {
  const { language, expression } = isObject(source.criteria) ? source.criteria : {}
  if (language !== QUERY || typeof expression !== 'string') {
    throw notSupported(`Criteria must be of the language ${QUERY}`, 'Measure.group.population')
  }
  const text = expression.replace(/\{\{\s*%(\w+)\s*\}\}/g, (_, name: string) => {
    if (!Object.hasOwn(variables, name)) throw badRequest(`Unknown variable %${name}`)
    return encodeURIComponent(variables[name] ?? '')
  })
  const [type = '', query = ''] = text.replace(/^\//, '').split('?')
  if (!isResourceType(type)) throw badRequest('Unknown resource type', 'Measure.group.population')
  const request = await resolved(call, parsed(call, type, readQuery(query), 'strict'))
  const ofSubject: Criterion[] =
    subject === undefined ? [] : [{ kind: 'compartment', reference: subject }]
  const [coding] = isObject(source.code) ? listOf(source.code.coding) : []
  const conditions = [...request.conditions, ...ofSubject]
  return { code: String(coding?.code ?? ''), source, request: { ...request, conditions } }
}

/** Which populations a population lies in, and which it leaves out. https://hl7.org/fhir/R4/valueset-measure-population.html */
const WITHIN: Readonly<Record<string, { readonly in: string[]; readonly out: string[] }>> = {
  denominator: { in: ['initial-population'], out: [] },
  'denominator-exclusion': { in: ['initial-population', 'denominator'], out: [] },
  numerator: { in: ['initial-population', 'denominator'], out: ['denominator-exclusion'] },
  'numerator-exclusion': {
    in: ['initial-population', 'denominator', 'numerator'],
    out: ['denominator-exclusion'],
  },
  'denominator-exception': {
    in: ['initial-population', 'denominator'],
    out: ['denominator-exclusion', 'numerator'],
  },
}

function inside(code: string, populations: readonly Population[]): readonly Criterion[] {
  const criteria = (name: string) =>
    populations.filter((one) => one.code === name).flatMap(({ request }) => request.conditions)
  const around = WITHIN[code]
  const without = (around?.out ?? []).flatMap((name): Criterion[] => {
    const isThere = populations.some((one) => one.code === name)
    const criterion = { kind: 'and', criteria: criteria(name) } as const
    return isThere ? [{ kind: 'not', criterion }] : []
  })
  return [...(around?.in ?? []).flatMap(criteria), ...criteria(code), ...without]
}

/** Undefined where nothing is left to be measured. */
function scoreOf(counts: ReadonlyMap<string, number>): number | undefined {
  const of = (code: string) => counts.get(code) ?? 0
  const all = of('denominator') - of('denominator-exclusion') - of('denominator-exception')
  if (all <= 0) return undefined
  return Math.round(((of('numerator') - of('numerator-exclusion')) / all) * 1e6) / 1e6
}

function listOf(value: unknown): readonly Readonly<Record<string, unknown>>[] {
  return Array.isArray(value) ? value.filter(isObject) : []
}
