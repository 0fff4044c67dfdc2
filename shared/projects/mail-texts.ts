/** Mails of the service: subject, plain text and HTML per event. */
import type { Config } from '../core/config/config.ts'
import { escapeHtml } from '../core/html.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Mail } from '../outbound/mails.ts'
import type { SecurityLink } from './security-requests.ts'
import { projectOfUser } from './users.ts'

type Settings = Pick<Config, 'appUrl' | 'productName'>

export type AccountChange =
  | 'the password was changed'
  | 'a second factor was added'
  | 'the second factor was removed'

interface InviteText {
  readonly projectName: string
  readonly link: SecurityLink
  readonly isVoid?: boolean | undefined
}

/** For a new user: link to the first password. `isVoid`: an earlier password was revoked. */
export function inviteMail(
  settings: Settings,
  to: string,
  { projectName, link, isVoid = false }: InviteText,
): Mail {
  const { productName } = settings
  const earlier =
    'A password was set for this address before it was confirmed. It is not valid any more.'
  return composed('invite', { ...link, email: to }, `Welcome to ${productName}`, [
    `You have been invited to ${projectName} on ${productName}.`,
    ...(isVoid ? [earlier] : []),
    'Please choose a password by this link. It works once, for 7 days:',
    passwordUrl(settings, link),
  ])
}

/** For a registered address: the reader may take the account. */
export function registrationMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('registration', { ...link, email: to }, `Your registration on ${productName}`, [
    `Someone, probably you, has registered with this address on ${productName}.`,
    'Please confirm it by choosing your password by this link. It works once, for 7 days:',
    passwordUrl(settings, link),
    'If it was not you, nothing needs to be done: the account leads nowhere you are invited to.',
  ])
}

/** For an address registered before; the page itself does not reveal that. */
export function knownAddressMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('registration', { ...link, email: to }, `Your registration on ${productName}`, [
    `Someone, probably you, tried to register with this address on ${productName}. It has an account already.`,
    `Please sign in with it: ${pageUrl(settings, 'signin', link.accountProject)}`,
    'If you have forgotten the password, choose another by this link. It works once, for an hour:',
    passwordUrl(settings, link),
    'If it was not you, nothing needs to be done.',
  ])
}

export function welcomeMail(settings: Settings, user: Resource, projectName: string): Mail {
  const { productName } = settings
  const subject = `${productName}: Welcome to ${projectName}`
  return composed('welcome', addressAccount(user), subject, [
    `You are now a member of ${projectName} on ${productName}.`,
    'Please sign in:',
    pageUrl(settings, 'signin', projectOfUser(user)),
  ])
}

export function resetMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('reset', { ...link, email: to }, `${productName} Password Reset`, [
    `Someone, probably you, has requested a new password on ${productName}.`,
    'Please choose it by this link. It works once, for an hour:',
    passwordUrl(settings, link),
    'If it was not you, nothing needs to be done.',
  ])
}

export function verifyEmailMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('verify-email', { ...link, email: to }, `${productName} Email Address Updated`, [
    `This address is now the one you are known by on ${productName}.`,
    'Please confirm it by this link. It works once, for 24 hours:',
    `${settings.appUrl}verifyemail/${link.id}/${link.secret}`,
    'If you know nothing of it, do not use the link.',
  ])
}

/** Sent to the old address. Omits the new one, which may belong to another person. */
export function emailChangedMail(settings: Settings, user: Resource): Mail {
  const { productName } = settings
  return composed('email-changed', addressAccount(user), `${productName} Email Address Replaced`, [
    `Your account on ${productName} has another email address now; this one no longer signs in.`,
    'If you did not request it, contact the administrators of your project at once.',
  ])
}

/** For the owner, when a sign-in method was added or removed. */
export function accountChangedMail(settings: Settings, user: Resource, event: AccountChange): Mail {
  const { productName } = settings
  return composed('account-changed', addressAccount(user), `${productName} Sign-In Changed`, [
    `Your account on ${productName}: ${event}.`,
    'If it was not you, contact the administrators of your project, and choose another password at once:',
    pageUrl(settings, 'resetpassword', projectOfUser(user)),
  ])
}

/** For a sign-in that has begun with the right password. */
export function codeMail(settings: Settings, user: Resource, code: string): Mail {
  const { productName } = settings
  return composed('sign-in-code', addressAccount(user), `Your code for ${productName}`, [
    `This code continues your sign-in to ${productName}. It works once, for ten minutes:`,
    code,
    'If you are not signing in, another person knows your password. Choose another one by this link:',
    pageUrl(settings, 'resetpassword', projectOfUser(user)),
  ])
}

/** The address of a link to choose a password. */
export function passwordUrl(
  settings: Pick<Config, 'appUrl'>,
  { id, secret, accountProject }: SecurityLink,
): string {
  return pageUrl(settings, `setpassword/${id}/${secret}`, accountProject)
}

/** An account of one project is found in that project only. */
function pageUrl(
  { appUrl }: Pick<Config, 'appUrl'>,
  page: 'signin' | 'resetpassword' | `setpassword/${string}`,
  project: string | undefined,
): string {
  return `${appUrl}${page}${project === undefined ? '' : `?project_id=${project}`}`
}

interface SubscriptionText {
  readonly projectName: string
  readonly id: string
  readonly error: string
}

export function subscriptionMail(
  settings: Settings,
  to: string,
  { projectName, id, error }: SubscriptionText,
): Mail {
  return composed(
    'subscription',
    { email: to },
    `${settings.productName}: a Subscription has stopped`,
    [
      `Subscription/${id} of ${projectName} is in error and sends nothing any more.`,
      error,
      'Fix the cause and set its status to active.',
    ],
  )
}

interface DeadLetterText {
  readonly projectName: string
  readonly botId: string
  readonly count: number
}

type DeadLetterSettings = Pick<Config, 'productName' | 'baseUrl' | 'appUrl' | 'consoleEnabled'>

/** For the administrators of a Project: runs of a bot have failed for good. The error may hold data, so it is left out. */
export function deadLetterMail(
  { productName, baseUrl, appUrl, consoleEnabled }: DeadLetterSettings,
  to: readonly string[],
  { projectName, botId, count }: DeadLetterText,
): Mail {
  const hasConsole = consoleEnabled && appUrl === baseUrl
  const place = hasConsole ? 'console/dead-letters' : 'fhir/R4/Bot/$dead-letters'
  const mail = composed(
    'dead-letters',
    { email: '' },
    `Failed runs in ${projectName} on ${productName}`,
    [
      `${count} runs of Bot/${botId} in ${projectName} have failed for good.`,
      'They are kept for 14 days. An administrator of the project can list, replay and discard them:',
      `${baseUrl}${place}?target=Bot/${botId}`,
      'There is at most one such mail a day about each bot.',
    ],
  )
  return { ...mail, to }
}

const LINK_SECRET = /((?:setpassword|verifyemail)\/[^/\s]+\/)\S+/g
const CODE = /^\d{6}$/gm

/** For logs: hides the secrets of links, and codes. */
export function withoutCodes(text: string): string {
  return text.replace(LINK_SECRET, '$1***').replace(CODE, '***')
}

interface Addressee {
  readonly email: string
  readonly accountProject?: string | undefined
}

function addressAccount(user: Resource): Addressee {
  return { email: String(user.email), accountProject: projectOfUser(user) }
}

function composed(
  kind: Mail['kind'],
  { email, accountProject }: Addressee,
  subject: string,
  lines: readonly string[],
): Mail {
  return {
    kind,
    to: [email],
    accountProject,
    // Prevents header injection by line breaks.
    subject: subject.replace(/\s+/g, ' '),
    text: `${lines.join('\n\n')}\n`,
    html: `<!doctype html><html lang="en"><body>${lines.map(paragraph).join('')}</body></html>`,
  }
}

function paragraph(line: string): string {
  const text = escapeHtml(line)
  return /^https?:\S+$/.test(line) ? `<p><a href="${text}">${text}</a></p>` : `<p>${text}</p>`
}
