/** Scopes as a person reads them on the consent page. */
import { AREA_WORDS } from './areas.ts'
import { grantedScope, type SmartScope, smartScopes } from './scopes.ts'

export interface ScopeInWords {
  /** The first word that says it; empty for what no word says. */
  readonly scope: string
  readonly text: string
  /** True for what a person may leave out: access to data. */
  readonly isChoice: boolean
}

const PLAIN: Readonly<Record<string, string>> = {
  openid: 'Know who you are',
  profile: 'See your name and your profile',
  fhirUser: 'See your name and your profile',
  email: 'See your e-mail address',
  phone: 'See your phone number',
  address: 'See your postal address',
  launch: 'Know what you were looking at when you opened it',
  'launch/patient': 'Know which patient you were looking at when you opened it',
  'launch/encounter': 'Know which encounter you were looking at when you opened it',
  online_access: 'Keep access while you use it',
  offline: 'Keep access when you are not using it',
  offline_access: 'Keep access when you are not using it',
}
const AREAS: Readonly<Record<string, string>> = {
  [AREA_WORDS.administration]:
    'Administer the project as you may: members, clients, secrets, mails',
  [AREA_WORDS.account]: 'Change how you sign in: your password, second factor and e-mail address',
}
const VERBS = [
  ['create', 'create'],
  ['read', 'read'],
  ['update', 'change'],
  ['delete', 'delete'],
  ['search', 'search'],
] as const

/** One entry a text; a scope without access to data is worth all that the person may do, and says so. */
export function scopeInWords(scope: string, project: string): readonly ScopeInWords[] {
  const words = grantedScope(scope).split(' ')
  const plain = words.flatMap((word) => {
    const text = PLAIN[word]
    return text === undefined ? [] : [{ scope: word, text, isChoice: false }]
  })
  const data = words.flatMap((word) =>
    smartScopes(word).map((smart) => ({ scope: word, text: smartInWords(smart), isChoice: true })),
  )
  // Without access to data a scope narrows nothing, and these words add nothing to it.
  const areas = words.flatMap((word) => {
    const text = AREAS[word]
    return text === undefined ? [] : [{ scope: word, text, isChoice: true }]
  })
  const all = {
    scope: '',
    text: `Do everything that you may do in ${project}`,
    isChoice: false,
  }
  return withoutTwins([...plain, ...(data.length === 0 ? [all] : [...data, ...areas])])
}

function smartInWords({ context, type, interactions, criteria }: SmartScope): string {
  const verbs = VERBS.filter(([interaction]) => interactions.has(interaction)).map(
    ([, verb]) => verb,
  )
  const what = type === '*' ? 'all kinds of records' : `records of type ${spaced(type)}`
  const where = context === 'patient' ? ' of one patient' : ' that you have access to'
  const only = criteria === undefined ? '' : `, only where ${criteria}`
  return `${sentence(verbs)} ${what}${where}${only}`
}

/** "Read, change and search". */
function sentence(verbs: readonly string[]): string {
  const text = [verbs.slice(0, -1).join(', '), verbs.at(-1)].filter(Boolean).join(' and ')
  return text.slice(0, 1).toUpperCase() + text.slice(1)
}

/** "Medication Request". */
function spaced(type: string): string {
  return type.replace(/(?<=[a-z])(?=[A-Z])/g, ' ')
}

function withoutTwins(list: readonly ScopeInWords[]): readonly ScopeInWords[] {
  return list.filter(
    ({ text, isChoice }, place) =>
      isChoice || list.findIndex((item) => item.text === text) === place,
  )
}
