/** Mails of the service: subject, plain text and HTML per event. */
import type { Config } from '../core/config/config.ts'
import type { Mail } from '../outbound/mails.ts'

type Settings = Pick<Config, 'appUrl' | 'productName'>

interface SecurityLink {
  readonly id: string
  readonly secret: string
}

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
  return composed('invite', to, `Welcome to ${productName}`, [
    `You have been invited to ${projectName} on ${productName}.`,
    ...(isVoid ? [earlier] : []),
    'Please choose a password by this link. It works once, for 7 days:',
    `${settings.appUrl}setpassword/${link.id}/${link.secret}`,
  ])
}

/** For a registered address: the reader may take the account. */
export function registrationMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('registration', to, `Your registration on ${productName}`, [
    `Somebody, probably you, has registered with this address on ${productName}.`,
    'Please confirm it by choosing your password by this link. It works once, for 7 days:',
    `${settings.appUrl}setpassword/${link.id}/${link.secret}`,
    'If it was not you, nothing needs to be done: the account leads nowhere you are invited to.',
  ])
}

/** For an address registered before; the page itself does not reveal that. */
export function knownAddressMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('registration', to, `Your registration on ${productName}`, [
    `Somebody, probably you, wanted to register with this address on ${productName}. It has an account already.`,
    `Please sign in with it: ${settings.appUrl}signin`,
    'If you have forgotten the password, choose another by this link. It works once, for an hour:',
    `${settings.appUrl}setpassword/${link.id}/${link.secret}`,
    'If it was not you, nothing needs to be done.',
  ])
}

export function welcomeMail(settings: Settings, to: string, projectName: string): Mail {
  const { productName } = settings
  return composed('welcome', to, `${productName}: Welcome to ${projectName}`, [
    `You are now a member of ${projectName} on ${productName}.`,
    'Please sign in:',
    `${settings.appUrl}signin`,
  ])
}

export function resetMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('reset', to, `${productName} Password Reset`, [
    `Somebody, probably you, has asked for a new password on ${productName}.`,
    'Please choose it by this link. It works once, for an hour:',
    `${settings.appUrl}setpassword/${link.id}/${link.secret}`,
    'If it was not you, nothing needs to be done.',
  ])
}

export function verifyEmailMail(settings: Settings, to: string, link: SecurityLink): Mail {
  const { productName } = settings
  return composed('verify-email', to, `${productName} Email Address Updated`, [
    `This address is now the one you are known by on ${productName}.`,
    'Please confirm it by this link. It works once, for 24 hours:',
    `${settings.appUrl}verifyemail/${link.id}/${link.secret}`,
    'If you know nothing of it, do not use the link.',
  ])
}

/** Sent to the old address. Omits the new one, which may belong to another person. */
export function emailChangedMail(settings: Settings, to: string): Mail {
  const { productName } = settings
  return composed('email-changed', to, `${productName} Email Address Replaced`, [
    `Your account on ${productName} has another email address now; this one no longer signs in.`,
    'If you did not ask for it, tell the administrators of your project at once.',
  ])
}

/** For the owner, when a sign-in method was added or removed. */
export function accountChangedMail(settings: Settings, to: string, what: AccountChange): Mail {
  const { productName } = settings
  return composed('account-changed', to, `${productName} Sign-In Changed`, [
    `Your account on ${productName}: ${what}.`,
    'If it was not you, tell the administrators of your project, and choose another password at once:',
    `${settings.appUrl}resetpassword`,
  ])
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
  return composed('subscription', to, `${settings.productName}: a Subscription has stopped`, [
    `Subscription/${id} of ${projectName} is in error and sends nothing any more.`,
    error,
    'Mend what is wrong and set its status to active.',
  ])
}

const LINK_SECRET = /((?:setpassword|verifyemail)\/[^/\s]+\/)\S+/g

export function withoutLinkSecret(text: string): string {
  return text.replace(LINK_SECRET, '$1***')
}

function composed(kind: Mail['kind'], to: string, subject: string, lines: readonly string[]): Mail {
  return {
    kind,
    to: [to],
    // Prevents header injection by line breaks.
    subject: subject.replace(/\s+/g, ' '),
    text: `${lines.join('\n\n')}\n`,
    html: `<!doctype html><html lang="en"><body>${lines.map(paragraph).join('')}</body></html>`,
  }
}

function paragraph(line: string): string {
  const text = escaped(line)
  return /^https?:\S+$/.test(line) ? `<p><a href="${text}">${text}</a></p>` : `<p>${text}</p>`
}

function escaped(text: string): string {
  const names: Readonly<Record<string, string>> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&#39;',
  }
  return text.replace(/[&<>"']/g, (character) => names[character] ?? '')
}
