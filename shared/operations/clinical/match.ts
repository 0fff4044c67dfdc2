/**
 * `Patient/$match`: https://hl7.org/fhir/R4/patient-operation-match.html. `Patient/$member-match` stores neither
 * Consent
 * nor CoverageToLink: https://hl7.org/fhir/us/davinci-hrex/OperationDefinition-member-match.html
 */
import { badRequest, businessRule, HttpError } from '../../core/errors.ts'
import { isObject, type Resource, targetIn } from '../../fhir/resource.ts'
import { parseDate, plainWords } from '../../fhir/values.ts'
import { parametersReply, readInputs, toInteraction } from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { searchByQuery } from '../../rest/criteria.ts'
import { pageReply } from '../../rest/interaction.ts'
import { escapeValue } from '../../search/language/values.ts'
import { parseVersion } from '../../store/rows/rows.ts'
import type { Version } from '../../store/rows/version.ts'
import { searchsetEntry } from './everything.ts'

const MOST_CANDIDATES = 100
const MOST_SEARCHES = 20
const DEFAULT_COUNT = 20

type Grade = 'certain' | 'probable' | 'possible'

interface Match {
  readonly version: Version
  readonly patient: Resource
  readonly grade: Grade
  readonly score: number
}

/** Errors: 400 without a Patient or without searchable content; 403. */
export const match: Operation = {
  name: 'match',
  on: [{ type: 'Patient', level: 'type' }],
  standard: 'type',
  methods: ['POST'],
  onlyReads: true,
  inputs: {
    resource: 'resource!: The Patient',
    onlyCertainMatches: 'flag: One, or none',
    count: 'whole: Most answers',
  },
  text: { summary: 'Find matching patients', answer: 'Bundle' },
  async run(call) {
    const inputs = readInputs(call)
    const patient = ofType(inputs.resource('resource'), 'resource', 'Patient')
    const { matches, isCut } = await findMatches(call, patient)
    const certain = matches.filter(({ grade }) => grade === 'certain')
    // Releases a record only if the match is unique.
    const isSure = certain.length === 1 && !isCut
    const shown = inputs.flag('onlyCertainMatches') ? (isSure ? certain : []) : matches
    const count = Math.max(0, inputs.whole('count') ?? DEFAULT_COUNT)
    const context = toInteraction(call)
    const entries = shown.slice(0, count).map(({ version, grade, score }) => {
      const { content, write } = searchsetEntry(context, version, 'match')
      return { content, write: () => graded(write(), grade, score) }
    })
    return pageReply(context, { type: 'searchset', total: shown.length, links: [] }, entries)
  },
}

const MATCH_GRADE = 'http://hl7.org/fhir/StructureDefinition/match-grade'
const PLAIN_SEARCH = '"search":{"mode":"match"}'

function graded(entry: string, grade: Grade, score: number): string {
  const extension = [{ url: MATCH_GRADE, valueCode: grade }]
  const search = JSON.stringify({ extension, mode: 'match', score })
  return entry.replace(PLAIN_SEARCH, () => `"search":${search}`)
}

/** Errors: 400 for missing input; 422 without exactly one match, or for an invalid Consent. */
export const memberMatch: Operation = {
  name: 'member-match',
  on: [{ type: 'Patient', level: 'type' }],
  definition: 'http://hl7.org/fhir/us/davinci-hrex/OperationDefinition/member-match',
  methods: ['POST'],
  inputs: {
    MemberPatient: 'resource!: The Patient',
    CoverageToMatch: 'resource!: The Coverage',
    CoverageToLink: 'resource: Of the new payer, which is not read',
    Consent: 'resource!: In force',
  },
  text: { summary: 'Find the member of a coverage', answer: 'Parameters' },
  async run(call) {
    const inputs = readInputs(call)
    const patient = ofType(inputs.resource('MemberPatient'), 'MemberPatient', 'Patient')
    const coverage = ofType(inputs.resource('CoverageToMatch'), 'CoverageToMatch', 'Coverage')
    requireConsent(ofType(inputs.resource('Consent'), 'Consent', 'Consent'))
    const [members, { matches, isCut }] = await Promise.all([
      beneficiaries(call, coverage),
      findMatches(call, patient),
    ])
    const named = matches.filter(({ patient: { id = '' }, grade }) => {
      return members.has(id) && grade !== 'possible'
    })
    const [member, second] = named
    if (member === undefined || second !== undefined || isCut) {
      throw businessRule('Not exactly one member is meant')
    }
    const { id } = member.patient
    return parametersReply([
      ['MemberIdentifier', 'valueIdentifier', memberIdentifier(member.patient, coverage)],
      ['MemberId', 'valueReference', { reference: `Patient/${id}` }],
    ])
  },
}

function ofType(resource: Resource | undefined, name: string, type: string): Resource {
  if (resource?.resourceType === type) return resource
  throw badRequest(`"${name}" must hold a ${type}`, name)
}

/** Requires an active Consent; its other terms are for the parties that release data. */
function requireConsent({ status, provision }: Resource): void {
  if (status !== 'active') throw businessRule('The Consent is not active', 'Consent.status')
  const period = isObject(provision) && isObject(provision.period) ? provision.period : {}
  const [start, end] = [parseDate(period.start), parseDate(period.end)]
  const now = Date.now()
  if ((start !== undefined && start.low > now) || (end !== undefined && end.high < now)) {
    throw businessRule('The Consent is not in force', 'Consent.provision.period')
  }
}

/** Returns ids of patients whose Coverage has an identifier or the subscriber id of the given one. */
async function beneficiaries(
  call: OperationCall,
  coverage: Resource,
): Promise<ReadonlySet<string>> {
  const { subscriberId } = coverage
  const queries = [
    ...identifierTokens(coverage).map((identifier) => ({ identifier })),
    ...(typeof subscriberId === 'string' ? [{ identifier: escapeValue(subscriberId) }] : []),
  ].slice(0, MOST_SEARCHES)
  const pages = await Promise.all(
    queries.map((query) => {
      return searchByQuery(call, 'Coverage', new URLSearchParams(query), { count: MOST_CANDIDATES })
    }),
  )
  const all = pages.flatMap(({ versions }) => versions.map(parseVersion))
  return new Set(
    all.flatMap(({ beneficiary }) => {
      const target = targetIn(beneficiary)
      return target?.type === 'Patient' ? [target.id] : []
    }),
  )
}

/** Returns the identifier of type MB or UMB, otherwise any of the member, otherwise the coverage's. */
function memberIdentifier(patient: Resource, coverage: Resource): unknown {
  const own = toObjects(patient.identifier)
  const isMember = ({ type }: Record<string, unknown>) =>
    isObject(type) &&
    toObjects(type.coding).some(({ code }) => typeof code === 'string' && /^U?MB$/.test(code))
  return own.find(isMember) ?? own[0] ?? toObjects(coverage.identifier)[0]
}

/** Returns the matching patients, best first. `isCut`: there are more candidates. */
async function findMatches(
  call: OperationCall,
  patient: Resource,
): Promise<{ readonly matches: readonly Match[]; readonly isCut: boolean }> {
  const queries = candidateQueries(patient)
  if (queries.length === 0) {
    throw badRequest(
      'An identifier, a telecom, or the birth date and a name are needed',
      'resource',
    )
  }
  const pages = await Promise.all(queries.map((query) => candidates(call, query)))
  const all = new Map<string, Version>()
  for (const { versions } of pages) for (const version of versions) all.set(version.id, version)
  const matches = [...all.values()].flatMap((version) => {
    const other = parseVersion(version)
    const judged = judge(patient, other)
    return judged === undefined ? [] : [{ version, patient: other, ...judged }]
  })
  return {
    matches: matches.sort((a, b) => b.score - a.score),
    isCut: pages.some(({ next }) => next !== undefined),
  }
}

/** Skips elements hidden from the caller by policy. */
async function candidates(call: OperationCall, query: Readonly<Record<string, string>>) {
  try {
    return await searchByQuery(call, 'Patient', new URLSearchParams(query), {
      count: MOST_CANDIDATES,
    })
  } catch (error) {
    const hidden = error instanceof HttpError && error.status === 403
    if (hidden && error.outcome.issue[0]?.expression !== undefined) {
      return { versions: [], next: undefined }
    }
    throw error
  }
}

function candidateQueries(patient: Resource): readonly Readonly<Record<string, string>>[] {
  const { birthDate } = patient
  const isDated = typeof birthDate === 'string' && /^\d{4}-\d\d-\d\d$/.test(birthDate)
  const names = isDated
    ? toObjects(patient.name).flatMap(({ family, given }) => [
        ...toStrings([family]).map((text) => ({ family: escapeValue(text), birthdate: birthDate })),
        ...toStrings(given).map((text) => ({ given: escapeValue(text), birthdate: birthDate })),
      ])
    : []
  const telecoms = toStrings(toObjects(patient.telecom).map(({ value }) => value))
  return [
    ...identifierTokens(patient).map((identifier) => ({ identifier })),
    ...telecoms.map((text) => ({ telecom: escapeValue(text) })),
    ...names,
  ].slice(0, MOST_SEARCHES)
}

/** Returns `system|value` for identifiers with both: a value alone identifies no one. */
function identifierTokens({ identifier }: Resource): readonly string[] {
  return toObjects(identifier).flatMap(({ system, value }) =>
    typeof system === 'string' && typeof value === 'string'
      ? [`${escapeValue(system)}|${escapeValue(value)}`]
      : [],
  )
}

/** Each agreement adds to the score. A conflicting sex or birth date halves it. */
const WEIGHTS = {
  identifier: 0.9,
  birthDate: 0.3,
  family: 0.25,
  given: 0.2,
  telecom: 0.2,
  address: 0.1,
}
const CERTAIN = 0.9
const PROBABLE = 0.65
const POSSIBLE = 0.3

function judge(one: Resource, other: Resource): Pick<Match, 'grade' | 'score'> | undefined {
  const agreements = {
    identifier: shares(identifierTokens(one), identifierTokens(other)),
    birthDate: one.birthDate !== undefined && one.birthDate === other.birthDate,
    family: shares(nameWords(one, 'family'), nameWords(other, 'family')),
    given: shares(nameWords(one, 'given'), nameWords(other, 'given')),
    telecom: shares(telecomKeys(one), telecomKeys(other)),
    address: shares(addressLines(one), addressLines(other)),
  }
  const contradictions = [datesDiffer(one.birthDate, other.birthDate), gendersDiffer(one, other)]
  const names = ['identifier', 'birthDate', 'family', 'given', 'telecom', 'address'] as const
  const sum = names.reduce((total, name) => total + (agreements[name] ? WEIGHTS[name] : 0), 0)
  const score =
    Math.round(Math.min(sum, 1) * 0.5 ** contradictions.filter(Boolean).length * 100) / 100
  if (score < POSSIBLE) return undefined
  // A shared number alone is insufficient: numbers are mistyped, and families share telephones.
  const isNamed = agreements.family || agreements.given || agreements.birthDate
  if (score >= CERTAIN && isNamed) return { grade: 'certain', score }
  return { grade: score >= PROBABLE ? 'probable' : 'possible', score: Math.min(score, 0.89) }
}

/** A date may be a year or a month: https://hl7.org/fhir/R4/datatypes.html#date */
function datesDiffer(one: unknown, other: unknown): boolean {
  if (typeof one !== 'string' || typeof other !== 'string') return false
  return !one.startsWith(other) && !other.startsWith(one)
}

function gendersDiffer({ gender: one }: Resource, { gender: other }: Resource): boolean {
  const isTold = (gender: unknown) => gender !== undefined && gender !== 'unknown'
  return isTold(one) && isTold(other) && one !== other
}

function shares(some: readonly string[], others: readonly string[]): boolean {
  return some.some((item) => others.includes(item))
}

function nameWords({ name }: Resource, part: 'family' | 'given'): readonly string[] {
  return toStrings(toObjects(name).flatMap((one) => one[part])).map(plainWords)
}

/** Returns the last digits of telephone numbers, which ignores country prefixes, and e-mail addresses in lower case. */
function telecomKeys({ telecom }: Resource): readonly string[] {
  const all = toStrings(toObjects(telecom).map(({ value }) => value)).map((text) =>
    text.includes('@') ? text.toLowerCase().trim() : text.replace(/\D/g, '').slice(-10),
  )
  return all.filter(({ length }) => length >= 5)
}

function addressLines({ address }: Resource): readonly string[] {
  return toStrings(toObjects(address).flatMap(({ line }) => line)).map(plainWords)
}

const MOST_COMPARED = 100

function toObjects(value: unknown): readonly Record<string, unknown>[] {
  return Array.isArray(value) ? value.slice(0, MOST_COMPARED).filter(isObject) : []
}

function toStrings(value: unknown): readonly string[] {
  const list = Array.isArray(value) ? value.slice(0, MOST_COMPARED) : []
  return list.filter((text): text is string => typeof text === 'string' && text.trim() !== '')
}
