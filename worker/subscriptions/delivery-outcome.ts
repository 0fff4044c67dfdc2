/** How an attempt ended. */
export type Sent =
  | { readonly kind: 'received'; readonly text: string }
  /** `after`: the receiver asks to wait so many ms. */
  | { readonly kind: 'failed'; readonly text: string; readonly after: number | undefined }
  /** By no fault of the receiver. */
  | { readonly kind: 'fault'; readonly text: string }
  /** It was not begun. */
  | { readonly kind: 'back'; readonly delayMs: number }
  /** Nobody waits for it, or nobody may have it; `text` is for the AuditEvent, if it is worth one. */
  | { readonly kind: 'stopped'; readonly reason: string; readonly text?: string }
